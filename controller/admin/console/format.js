// Values as text. An unknown value is a dash, never NaN.

const UNKNOWN = "–";

export const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export function number(value, digits = 0) {
  if (!isKnown(value)) return UNKNOWN;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const percent = (value) => isKnown(value) ? `${value >= 0 ? "+" : "−"}${number(Math.abs(100 * value), 1)} %` : UNKNOWN;

export const share = (value) => !isKnown(value) ? UNKNOWN : value > 0 && value < 0.005 ? "< 1 %" : `${number(100 * value)} %`;

export const ms = (seconds) => isKnown(seconds) ? number(1000 * seconds, 2) : UNKNOWN;

export const clock = (at) => isKnown(at) ? new Date(1000 * at).toLocaleTimeString() : UNKNOWN;

export const moment = (at) => isKnown(at) ? new Date(1000 * at).toLocaleString() : UNKNOWN;

export const duration = (seconds) => seconds < 120 ? `${number(seconds)} s` : seconds < 7200 ? `${number(seconds / 60)} min` : seconds < 172800 ? `${number(seconds / 3600)} h` : `${number(seconds / 86400)} d`;

// A field's value; fields of times hold Unix seconds.
export const text = (value, field = "") => isKnown(value) && /(^|_)(until|at)$/.test(field) ? moment(value) : value === null || value === undefined ? "none"
  : typeof value === "object" ? JSON.stringify(value, (_, inner) => inner ?? undefined) : String(value);

// Mean K by class.
export const kText = (k) => Object.entries(k ?? {}).sort().map(([name, value]) => `${name} ${number(value, 1)}`).join(", ") || UNKNOWN;

export const interval = (bounds, none = "too few blocks") => bounds ? `${percent(bounds.low)} to ${percent(bounds.high)}` : none;

// The control group's result as pairs of label and value: the gain of adaptive K over the static K in each measure.
export function controlGroup(gains) {
  const none = gains ? `${number(gains.windows)} windows, too few` : "no control group";
  return [["throughput", "throughput"], ["latency", "itl"]].map(([name, measure]) =>
    [`gain in ${name} over static K, measured (95 %)`, interval(gains?.[`${measure}_gain_ratio`], none)]);
}
