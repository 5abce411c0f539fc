// Policies: edited in a form and as JSON, with the reply to a dry run; history with diffs and rollback.

import { call, confirm, path } from "./api.js";
import { diff, dryRun, refusal } from "./answers.js";
import { empty, h, section, show, table } from "./dom.js";
import { moment } from "./format.js";
import { merged } from "./merge.js";
import { ruleForm } from "./rules.js";

const DRY_RUN_AFTER_MS = 350;
const FIELDS = [["mode", ["act", "advise", "off"]], ["objective", ["throughput", "latency"]], ["static_k", "whole"], ["k_min", "whole"], ["k_max", "whole"],
  ["probe_ratio", "number"], ["control_group_ratio", "number"], ["limit_running", "flag"]];
const OF_CLASS = ["weight", "k_min", "k_max", "pin", "priority"];
const GOALS = ["tpot_ms", "ttft_ms"];

// A policy without its null fields.
function stated(value) {
  if (Array.isArray(value)) return value.map(stated);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).filter(([, inner]) => inner !== null).map(([name, inner]) => [name, stated(inner)]));
}

const read = (input) => input.value.trim() === "" ? null : Number(input.value);

export function policies(page) {
  let model = sessionStorage.getItem("policy") ?? "", version = null, base = {}, draft = {}, timer = 0;
  // Counts of opened policies and of edits: a reply to an older request is dropped, as it would undo the newer one.
  let opened = 0, previews = 0;
  const list = h("div", {}), form = h("div", {}), answer = h("div", { role: "status" }), history = h("div", {}), compared = h("div", {});
  const json = h("textarea", { rows: 16, spellcheck: "false", "aria-label": "The policy as JSON" });
  const canary = h("button", { type: "button", onclick: () => tryOut().catch(fail) }, "Try as canary");
  const save = h("button", { type: "button", class: "primary", onclick: () => write().catch(fail) }, "Write it");
  const remove = h("button", { type: "button", onclick: () => drop().catch(fail) }, "Delete it");
  const title = h("h2", {}, "Policy");
  const editor = h("section", { class: "most" }, title, form, h("div", { class: "row" }, save, canary, remove),
    h("details", {}, h("summary", {}, "As JSON"), json));
  page.replaceChildren(
    section("Models", "", list),
    editor,
    section("What it would do", "third", answer),
    section("History", "half", history),
    section("What changed", "half", compared));

  json.addEventListener("input", () => {
    try {
      draft = JSON.parse(json.value);
    } catch (error) {
      return cannotRead(`This is no JSON: ${error.message}`);
    }
    if (draft === null || typeof draft !== "object" || Array.isArray(draft)) return cannotRead("A policy is an object: { … }");
    try {
      drawForm();
    } catch {
      form.replaceChildren(empty("The form cannot show this. Beside is what is wrong with it."));
    }
    later();
  });

  function cannotRead(why) {
    previews += 1;
    clearTimeout(timer);
    save.disabled = canary.disabled = true;
    show(answer, h("p", { class: "bad" }, why));
  }

  function fail(error) {
    const isTheirs = error.code === "version_conflict";
    show(answer, refusal(error), isTheirs && h("div", { class: "row" },
      h("button", { type: "button", class: "primary", onclick: () => open(model, { keeps: true }).catch(fail) }, "Keep my changes on top of it"),
      h("button", { type: "button", onclick: () => open(model).catch(fail) }, "Drop my changes")));
  }

  function set(target, field, value) {
    if (value === null) delete target[field]; else target[field] = value;
    json.value = JSON.stringify(draft, null, 2);
    later();
  }

  function input(target, field, kind, label) {
    if (Array.isArray(kind)) {
      const select = h("select", { "aria-label": label, onchange: () => set(target, field, select.value) }, kind.map((item) => h("option", { value: item, selected: target[field] === item }, item)));
      select.value = target[field] ?? kind[0];
      return select;
    }
    if (kind === "flag")
      return h("input", { type: "checkbox", "aria-label": label, checked: target[field] === true, onchange: (event) => set(target, field, event.target.checked) });
    const box = h("input", { type: "number", step: kind === "whole" ? "1" : "any", "aria-label": label, value: target[field] ?? "", placeholder: "default",
      oninput: () => set(target, field, read(box)) });
    return box;
  }

  // A latency goal, such as "p95 30"; what cannot be read goes to the API, which says why not.
  function goal(target, measure, label) {
    const [statistic, ms] = Object.entries(target.slo?.[measure] ?? {})[0] ?? [];
    const box = h("input", { type: "text", "aria-label": label, value: statistic ? `${statistic} ${ms}` : "", placeholder: "p95 30",
      oninput: () => {
        const [name, value] = box.value.trim().split(/\s+/), slo = { ...target.slo, [measure]: { [name]: Number(value) } };
        if (!name) delete slo[measure];
        set(target, "slo", Object.keys(slo).length ? slo : null);
      } });
    return box;
  }

  function classRows() {
    return Object.keys(draft.classes ?? {}).sort().map((name) => [
      name, ...OF_CLASS.map((field) => input(draft.classes[name], field, "number", `${field} of ${name}`)),
      ...GOALS.map((measure) => goal(draft.classes[name], measure, `${measure} of ${name}`)),
      h("button", { type: "button", "aria-label": `remove ${name}`, onclick: () => { delete draft.classes[name]; changed(); } }, "Remove")]);
  }

  function drawForm() {
    const name = h("input", { type: "text", "aria-label": "name of a new class", placeholder: "new class" });
    const add = h("button", { type: "button", onclick: () => {
      if (!name.value.trim()) return;
      draft.classes = { ...draft.classes, [name.value.trim()]: {} };
      changed();
    } }, "Add class");
    const classes = table("Classes", [["class"], ...[...OF_CLASS, ...GOALS].map((field) => [field.replaceAll("_", " ")]), [""]], classRows());
    classes.classList.add("classes");
    form.replaceChildren(
      h("div", { class: "fields" }, FIELDS.map(([field, kind]) => h("label", {}, field.replaceAll("_", " "), input(draft, field, kind))),
        GOALS.map((measure) => h("label", {}, measure.replaceAll("_", " "), goal(draft, measure, measure)))),
      Object.keys(draft.classes ?? {}).length ? classes : empty("No class has wishes of its own."),
      h("div", { class: "row" }, name, add),
      ruleForm(draft, set, changed));
  }

  function changed() {
    json.value = JSON.stringify(draft, null, 2);
    drawForm();
    later();
  }

  function later() {
    previews += 1;
    clearTimeout(timer);
    timer = setTimeout(() => tell().catch(fail), DRY_RUN_AFTER_MS);
  }

  const put = (also) => call(`policies/${path(model)}`, { method: "PUT", body: draft, etag: version, ...also });

  async function tell() {
    const started = previews;
    save.disabled = canary.disabled = true;
    const preview = await put({ dry: true }).catch((error) => { if (started === previews) throw error; });
    if (started !== previews) return;
    save.disabled = canary.disabled = preview.changes.length === 0;
    show(answer, h("p", { class: "empty" }, preview.changes.length ? `Would be version ${preview.version}.` : version === null ? "The defaults hold." : "This is what holds now."), dryRun(preview));
  }

  async function write() {
    const preview = await put({ dry: true });
    const comment = await confirm(`Write version ${preview.version} of ${model}?`, diff(preview.changes));
    if (comment === null) return;
    await open(model, { after: () => put({ comment }) });
  }

  async function tryOut() {
    const body = { policy: draft }, place = `canaries/${path(model)}`;
    const etag = version ?? undefined, preview = await call(place, { method: "PUT", body, etag, dry: true });
    const comment = await confirm(`Let this policy take turns with the present one of ${model}?`, diff(preview.changes));
    if (comment === null) return;
    await call(place, { method: "PUT", body, etag, comment });
    location.hash = "#canaries";
  }

  async function drop() {
    if (version === null) return;
    const place = `policies/${path(model)}`, preview = await call(place, { method: "DELETE", etag: version, dry: true });
    const comment = await confirm(`Delete the policy of ${model}? The defaults hold then.`, diff(preview.changes));
    if (comment === null) return;
    await open(model, { after: () => call(place, { method: "DELETE", etag: version, comment }) });
  }

  async function rollBack(to) {
    const place = `policies/${path(model)}/rollback`, body = { version: to }, etag = version;
    const preview = await call(place, { method: "POST", body, etag, dry: true });
    const comment = await confirm(`Write version ${to} of ${model} again?`, dryRun(preview));
    if (comment === null) return;
    await open(model, { after: () => call(place, { method: "POST", body, etag, comment }) });
  }

  async function compare(from, to) {
    const changed = await call(`policies/${path(model)}/diff?from=${from}&to=${to}`);
    show(compared, h("p", {}, `Version ${from || "0 (the defaults)"} → ${to}`), diff(changed.changes));
  }

  async function showHistory() {
    const started = opened, { versions } = await call(`policies/${path(model)}/versions?limit=300`);
    if (started !== opened) return;
    const rows = versions.map((item, at) => [String(item.version), { cell: moment(item.updated_at), class: "whole" }, item.cause, { cell: item.author || "unknown", class: "wrap" },
      { cell: item.comment, class: "wrap" },
      h("span", {}, h("button", { type: "button", "aria-label": `diff of version ${item.version}`, onclick: () => compare(item.version === 1 ? 0 : item.version - 1, item.version).catch(fail) }, "Diff"), " ",
        at > 0 && item.policy && h("button", { type: "button", onclick: () => rollBack(item.version).catch(fail) }, "Go back to it"))]);
    history.replaceChildren(rows.length ? table("Versions", [["version", true], ["when"], ["cause"], ["who"], ["comment"], [""]], rows) : empty("It was never written."));
    compared.replaceChildren(empty("Choose a version's diff."));
  }

  // Awaits `after`, then shows the stored policy of `name`; with `keeps`, with the unsaved edits applied to it. The editor
  // is inert meanwhile, as an edit would be lost.
  async function open(name, { keeps = false, after = null } = {}) {
    const started = ++opened;
    editor.inert = true;
    try {
      await after?.();
      const { policies: all, default_mode: mode } = await call("policies");
      if (started !== opened) return;
      model = name;
      sessionStorage.setItem("policy", name);
      const versioned = all.find((item) => item.policy.model === name);
      version = versioned ? versioned.version : null;
      const stored = versioned ? stated(versioned.policy) : { model: name, mode };
      draft = keeps ? merged(base, draft, stored) : structuredClone(stored);
      base = structuredClone(stored);
      title.textContent = `Policy of ${name}${version === null ? ": none yet, the defaults hold" : `, version ${version}`}`;
      remove.disabled = version === null;
      changed();
    } finally {
      if (started === opened) editor.inert = false;
    }
    await Promise.all([showHistory(), drawList()]);
  }

  async function drawList() {
    const [{ policies: stored }, { engines }] = await Promise.all([call("policies"), call("engines")]);
    const names = [...new Set([...stored.map((item) => item.policy.model), ...engines.map((item) => item.model)])].sort();
    const other = h("input", { type: "text", "aria-label": "another model", placeholder: "another model" });
    list.replaceChildren(h("div", { class: "row" }, names.map((name) => h("button", { type: "button", "aria-pressed": String(name === model), class: name === model && "primary", onclick: () => open(name).catch(fail) }, name)),
      other, h("button", { type: "button", onclick: () => other.value.trim() && open(other.value.trim()).catch(fail) }, "Open")));
    return names;
  }

  return {
    async refresh() {
      const names = await drawList();
      if (model || names.length) await open(names.includes(model) || !names.length ? model : names[0]);
    },
    everyS: null,
    leave: () => { opened += 1; previews += 1; clearTimeout(timer); },
  };
}
