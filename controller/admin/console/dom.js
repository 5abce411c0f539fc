// Builds elements. Text is inserted as text nodes only, so that no value can become markup.

const SVG = "http://www.w3.org/2000/svg";

function built(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, properties, ...children) => built(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => built(document.createElementNS(SVG, tag), properties, children);
export const by = (id) => document.getElementById(id);

export function section(title, size, ...children) {
  return h("section", { class: size }, h("h2", {}, title), ...children);
}

// heads: [text, isNumber], without text for a column of buttons; rows: arrays of cells, a cell being text, an element, or { cell, ...attributes }.
// On a narrow screen each row of a wide table is a card, with each cell below its head.
export function table(label, heads, rows) {
  const head = h("tr", {}, heads.map(([text, isNumber]) => h("th", { scope: "col", class: isNumber && "number" }, text || "actions")));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, at) => {
    const { cell: inner, ...attributes } = cell !== null && typeof cell === "object" && "cell" in cell ? cell : { cell };
    return h("td", { class: heads[at][1] && "number", "data-head": heads[at][0] || null, ...attributes }, inner ?? "–");
  })));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", { class: (heads.length > 4 || heads.some(([text]) => !text)) && "wide" }, h("thead", {}, head), h("tbody", {}, body)));
}

export const empty = (text) => h("p", { class: "empty" }, text);

export function numbers(pairs) {
  return h("dl", { class: "numbers" }, pairs.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))));
}

const shown = new WeakMap();

// Replaces the content of `place` if it differs, so that a selection or a scroll position stays otherwise.
export function show(place, ...children) {
  const next = h("div", {}, ...children);
  if (shown.get(place) === next.innerHTML) return;
  shown.set(place, next.innerHTML);
  place.replaceChildren(...next.childNodes);
}
