// Model routes, from model names in requests to models. Each route is written by itself, after a dry run.

import { call, confirm } from "./api.js";
import { diff, refusal } from "./answers.js";
import { empty, h, section, show, table } from "./dom.js";
import { number } from "./format.js";

const words = (text) => text.split(",").map((item) => item.trim()).filter(Boolean);

// "big=9, new" as targets; the API rejects a weight that is not a number.
const targets = (text) => words(text).map((item) => {
  const at = item.lastIndexOf("=");
  return at < 0 ? { model: item } : { model: item.slice(0, at).trim(), weight: Number(item.slice(at + 1)) };
});

const asTyped = (split) => split.map(({ model, weight }) => weight === 1 ? model : `${model}=${weight}`).join(", ");

function served(name, split) {
  const total = split.reduce((sum, item) => sum + item.weight, 0);
  return split.length > 1 ? split.map((item) => `${item.model} ${number(100 * item.weight / total, 1)} %`).join(", ") : split[0]?.model ?? name;
}

export function models(page, me) {
  const list = h("div", {}), notice = h("div", { role: "status" }), mayWrite = me.role !== "viewer";
  const name = h("input", { placeholder: "chat" }), split = h("input", { placeholder: "of its own name" }), fallback = h("input", { placeholder: "none" });
  let version = 0;
  page.replaceChildren(section("Model routes", "", list), mayWrite ? section("Set a route", "",
    h("div", { class: "fields" }, h("label", {}, "name that clients ask for", name), h("label", {}, "models, with weights: big=9, new", split),
      h("label", {}, "else, while none of these runs", fallback)),
    h("div", { class: "row" }, h("button", { type: "button", class: "primary", onclick: () => set() }, "Set it")), notice) : "");

  // Shows the effect, asks, and writes; `route` null removes. Returns whether it was written.
  async function write(of, route, question) {
    try {
      const request = { method: "PATCH", body: { routes: { [of]: route } }, etag: version || undefined };
      const would = await call("model-routes", { ...request, dry: true });
      const comment = await confirm(question, diff(would.changes));
      if (comment === null) return false;
      await call("model-routes", { ...request, comment });
      await refresh();
      show(notice);
      return true;
    } catch (error) {
      if (error.code === "version_conflict") await refresh();  // shows the present route, for a second try
      show(notice, refusal(error));
      return false;
    }
  }

  async function set() {
    const of = name.value.trim();
    if (!of) return show(notice, h("p", { class: "bad" }, "Name what clients ask for."));
    const route = { split: targets(split.value), fallback: words(fallback.value) };
    if (await write(of, route, `Set the route of ${of}?`)) name.value = split.value = fallback.value = "";
  }

  function row([of, route]) {
    const change = () => {
      [name.value, split.value, fallback.value] = [of, asTyped(route.split), route.fallback.join(", ")];
      split.focus();
    };
    return [{ cell: of, class: "wrap" }, { cell: served(of, route.split), class: "wrap" }, { cell: route.fallback.join(", ") || "none", class: "wrap" },
      mayWrite && h("span", {}, h("button", { type: "button", onclick: change }, "Change"), " ",
        h("button", { type: "button", onclick: () => write(of, null, `Remove the route of ${of}?`) }, "Remove"))];
  }

  async function refresh() {
    const stored = await call("model-routes"), rows = Object.entries(stored.routes).sort().map(row);
    version = stored.version;
    list.replaceChildren(rows.length ? table("Model routes", [["name"], ["served by"], ["else"], [""]], rows)
      : empty("No name has a route: each model is asked for by its own name."));
  }

  return { refresh, everyS: null, leave() {} };
}
