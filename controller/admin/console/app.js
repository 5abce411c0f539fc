// The entry: chooses the page and refreshes it; shows the caller's name and the freezes.

import { access } from "./access.js";
import { call, confirm, path } from "./api.js";
import { audit } from "./audit.js";
import { canaries } from "./canaries.js";
import { by, h, show } from "./dom.js";
import { fleet } from "./fleet.js";
import { moment } from "./format.js";
import { models } from "./models.js";
import { policies } from "./policies.js";

const PAGES = { fleet, policies, canaries, models, audit, access };
const FREEZES_EVERY_S = 2;
let page = null, me = { name: "", role: "viewer" };

function tellState(error) {
  by("state").textContent = error ? error.message : `live, ${new Date().toLocaleTimeString()}`;
  by("state").className = error ? "bad" : "";
}

async function open() {
  const name = location.hash.slice(1) in PAGES ? location.hash.slice(1) : "fleet";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  page?.leave();
  const shown = page = PAGES[name](by("page"), me);
  for (;;) {
    try {
      await shown.refresh();
      tellState(null);
    } catch (error) {
      tellState(error);
    }
    if (shown.everyS === null) return;
    await new Promise((resolve) => setTimeout(resolve, 1000 * shown.everyS));
    if (page !== shown) return;
  }
}

async function freeze() {
  const { engines } = await call("engines");
  const model = h("select", {}, h("option", { value: "" }, "everything"), [...new Set(engines.map((item) => item.model))].sort().map((name) => h("option", { value: name }, name)));
  const hold = h("select", {}, h("option", { value: "current" }, "the present K"), h("option", { value: "static" }, "the static K"));
  const minutes = h("input", { type: "number", min: 1, placeholder: "until it is lifted" });
  const comment = await confirm("Freeze K", h("div", { class: "fields" }, h("label", {}, "of", model), h("label", {}, "on", hold), h("label", {}, "minutes", minutes)));
  if (comment === null) return;
  const body = { hold: hold.value, ...(minutes.value && { for_s: 60 * Number(minutes.value) }) };
  const place = model.value ? `freezes/${path(model.value)}` : "freezes";
  try {
    await call(place, { method: "PUT", body, comment });
  } catch (error) {
    if (error.code !== "frozen_by_another") throw error;
    const again = await confirm("Replace somebody else's freeze?", h("p", {}, error.message.split("; send ")[0], "."));
    if (again !== null) await call(place, { method: "PUT", body: { ...body, replace: true }, comment: again || comment });
  }
  await showFreezes();
}

async function lift(model) {
  const comment = await confirm(`Lift the freeze of ${model === "*" ? "everything" : model}?`, "");
  if (comment === null) return;
  await call(model === "*" ? "freezes" : `freezes/${path(model)}`, { method: "DELETE", comment });
  await showFreezes();
}

async function showFreezes() {
  const { freezes } = await call("freezes");
  show(by("freezes"), freezes.map((item) => h("p", {}, h("b", {}, item.model === "*" ? "Everything" : item.model), ` is frozen on ${item.hold === "static" ? "the static K" : "K as it was when the freeze began"}, by ${item.author}, until ${item.until === null ? "it is lifted" : moment(item.until)}${item.comment ? ` (${item.comment})` : ""}`,
    me.role !== "viewer" && h("button", { type: "button", onclick: () => lift(item.model).catch(tellState) }, "Lift"))));
}

async function begin() {
  for (;;) {
    try {
      me = await call("whoami");
      break;
    } catch (error) {
      tellState(error);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  by("who").replaceChildren(`${me.name}, ${me.role} `, me.role === "viewer" ? "" : h("button", { type: "button", onclick: () => freeze().catch(tellState) }, "Freeze…"));
  addEventListener("hashchange", open);
  open();
  for (;;) {
    await showFreezes().catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 1000 * FREEZES_EVERY_S));
  }
}

begin();
