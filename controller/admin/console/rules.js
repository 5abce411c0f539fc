// Match rules as a form: they give a class to a request that names none. The first rule that fits wins.

import { empty, h, table } from "./dom.js";

const FACTS = ["stream", "has_tools", "has_response_format"];
const SIZES = ["max_tokens_at_most", "prompt_chars_at_least"];
const ANY = { "": "any", true: "yes", false: "no" };

// `draft` is the edited policy; `set(target, field, value)` writes one field, null for none; `changed()` is called after
// a rule was added, moved or removed.
export function ruleForm(draft, set, changed) {
  const rules = () => draft.match ?? [], classes = ["default", ...Object.keys(draft.classes ?? {}).filter((name) => name !== "default").sort()];

  function choice(rule, field, label, options, write) {
    const select = h("select", { "aria-label": label, onchange: () => set(rule, field, write(select.value)) },
      Object.entries(options).map(([value, shown]) => h("option", { value }, shown)));
    select.value = String(rule[field] ?? "");
    return select;
  }

  function text(rule, field, label, attributes, write) {
    const box = h("input", { "aria-label": label, placeholder: "any", value: rule[field] ?? "", ...attributes,
      oninput: () => set(rule, field, box.value.trim() === "" ? null : write(box.value.trim())) });
    return box;
  }

  function change(work) {
    const ruleList = [...rules()];
    work(ruleList);
    if (ruleList.length) draft.match = ruleList; else delete draft.match;
    changed();
  }

  function row(rule, at) {
    const of = `of rule ${at + 1}`, named = classes.includes(rule.traffic_class) ? classes : [...classes, rule.traffic_class];
    return [
      String(at + 1),
      choice(rule, "traffic_class", `class ${of}`, Object.fromEntries(named.map((name) => [name, name])), (value) => value),
      text(rule, "path", `path ${of}`, { type: "text" }, (value) => value),
      ...FACTS.map((field) => choice(rule, field, `${field} ${of}`, ANY, (value) => value === "" ? null : value === "true")),
      ...SIZES.map((field) => text(rule, field, `${field} ${of}`, { type: "number", min: 0 }, Number)),
      h("span", {}, at > 0 && h("button", { type: "button", "aria-label": `move rule ${at + 1} up`,
        onclick: () => change((ruleList) => ruleList.splice(at - 1, 2, ruleList[at], ruleList[at - 1])) }, "Up"), " ",
      h("button", { type: "button", "aria-label": `remove rule ${at + 1}`, onclick: () => change((ruleList) => ruleList.splice(at, 1)) }, "Remove"))];
  }

  const heads = [["rule", true], ["class"], ["path"], ...FACTS.map((field) => [field.replaceAll("_", " ")]), ...SIZES.map((field) => [field.replaceAll("_", " ")]), [""]];
  const list = rules().length ? table("Match rules", heads, rules().map(row)) : empty("No rule: a request is in the class that it or its key names, else in default.");
  list.classList.add("classes");
  return h("div", {}, h("h3", {}, "Class of requests that name none: the first rule that fits"), list,
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => change((ruleList) => ruleList.push({ traffic_class: classes[classes.length - 1] })) }, "Add rule")));
}
