// Merges the edits of two operators of one document: one's changes are applied to the other's version. Pure.

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

const same = (a, b) => isObject(a) && isObject(b)
  ? [...new Set([...Object.keys(a), ...Object.keys(b)])].every((name) => same(a[name], b[name]))
  : JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

// A field that `mine` did not change is taken from `theirs`; where both changed a field, mine stands. A list is one field.
export function merged(base, mine, theirs) {
  if (same(mine, base)) return theirs;
  if (!isObject(mine) || !isObject(theirs)) return mine;
  const from = isObject(base) ? base : {}, found = {};
  for (const name of new Set([...Object.keys(theirs), ...Object.keys(mine)])) {
    const value = merged(from[name], mine[name], theirs[name]);
    if (value !== undefined) found[name] = value;
  }
  return found;
}
