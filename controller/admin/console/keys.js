// The limits of a client key as a form, for a new key or a change. Only fields that differ are sent.

import { h } from "./dom.js";

const DAY_S = 86400;
const FIELDS = [
  ["traffic_class", "traffic class", "text", "none"], ["allowed_classes", "classes, by commas", "list", "any"], ["allowed_models", "models, by commas", "list", "any"],
  ["requests_per_minute", "requests per minute", "number", "no limit"], ["tokens_per_minute", "tokens per minute", "number", "no limit"],
  ["max_concurrent_requests", "requests at once", "number", "no limit"], ["k_max", "most K", "number", "no ceiling"],
];

// A field of a new expiry: [elements, its part of a body]. `stored` is the present one, left out where there is none yet.
export function expiry(stored) {
  const days = h("input", { type: "number", min: 1, placeholder: stored === undefined ? "for ever" : "as it is" });
  const never = typeof stored === "number" && h("input", { type: "checkbox" });
  return [
    [h("label", {}, stored === undefined ? "days it is good for" : "days from now", days), never && h("label", {}, "does not expire", never)],
    () => days.value ? { expires_in_s: Number(days.value) * DAY_S } : never && never.checked ? { expires_at: null } : {}];
}

// The form of `key`, or of a new one: [elements, the body that it asks for].
export function keyForm(key = {}) {
  const [expires, expiryOf] = expiry(key.expires_at);
  const inputs = FIELDS.map(([field, label, kind, placeholder]) => {
    const known = key[field] ?? null, before = known === null ? "" : kind === "list" ? known.join(", ") : String(known);
    const box = h("input", { type: kind === "number" ? "number" : "text", min: kind === "number" ? (field === "k_max" ? 0 : 1) : null, placeholder, value: before });
    const read = (text) => text === "" ? null : kind === "number" ? Number(text) : kind === "list" ? text.split(",").map((item) => item.trim()).filter(Boolean) : text;
    return [h("label", {}, label, box), () => box.value.trim() === before ? {} : { [field]: read(box.value.trim()) }];
  });
  return [h("div", { class: "fields" }, inputs.map(([label]) => label), expires), () => Object.assign({}, ...inputs.map(([, body]) => body()), expiryOf())];
}
