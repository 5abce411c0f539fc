// Merges the edits of two operators of one document: one's changes are applied to the other's version. Pure.

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

const same = (a, b) => isObject(a) && isObject(b)
  ? [...new Set([...Object.keys(a), ...Object.keys(b)])].every((name) => same(a[name], b[name]))
  : JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

// A field that `edited` did not change is taken from `stored`; where both changed a field, `edited` wins. A list is one field.
export function merged(base, edited, stored) {
  if (same(edited, base)) return stored;
  if (!isObject(edited) || !isObject(stored)) return edited;
  const from = isObject(base) ? base : {}, result = {};
  for (const name of new Set([...Object.keys(stored), ...Object.keys(edited)])) {
    const value = merged(from[name], edited[name], stored[name]);
    if (value !== undefined) result[name] = value;
  }
  return result;
}
