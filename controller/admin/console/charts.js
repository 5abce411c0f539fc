// K as a heat map, survival, throughput over time. Pure: data in, elements out.

import { empty, h, s } from "./dom.js";
import { clock, isKnown, number, share } from "./format.js";

const COLOURS = ["#2f6fde", "#d97706", "#16845b", "#9333ea", "#db2777", "#0891b2", "#65a30d", "#b91c1c"];
const colour = (at) => COLOURS[Number(at) % COLOURS.length];

const kAt = (ranges, n) => (ranges.find(([, hi]) => n <= hi) ?? ranges[ranges.length - 1])[2];

// K by number of running decodes, as ranges [lo, hi, K] by class; "*" is all requests.
export function heatMap(rows, decodes, unknown) {
  const names = Object.keys(rows ?? {}).sort();
  if (!names.length) return empty(unknown || "no engine was asked yet");
  const starts = [...new Set([1, ...names.flatMap((name) => rows[name].map(([lo]) => lo))])].sort((a, b) => a - b);
  const deepest = Math.max(1, ...names.flatMap((name) => rows[name].map((range) => range[2])));
  const head = starts.map((lo, at) => {
    const hi = at + 1 < starts.length ? starts[at + 1] - 1 : null;
    const isNow = isKnown(decodes) && Math.max(1, Math.round(decodes)) >= lo && (hi === null || Math.round(decodes) <= hi);
    const label = hi === null ? `${lo}+` : hi === lo ? String(lo) : `${lo}–${hi}`;
    return h("th", { scope: "col", class: isNow && "now", title: isNow && "the present load" }, label);
  });
  const body = names.map((name) => h("tr", {}, h("th", { scope: "row" }, name === "*" ? "all requests" : name), starts.map((lo) => {
    const k = kAt(rows[name], lo), cell = h("td", {}, String(k));
    cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(6 + 50 * k / deepest)}%, var(--paper))`;
    return cell;
  })));
  return [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "K by class and running decodes" },
    h("table", { class: "heat" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "running decodes"), head)), h("tbody", {}, body))),
  h("p", { class: "empty" }, "What engines would choose at each load for requests like those that they run: the mean by class.")];
}

function legend(items) {
  return h("ul", { class: "legend" }, items.map(([label, fill]) => h("li", {}, s("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" },
    s("rect", { width: 14, height: 10, rx: 2, fill })), label)));
}

const scrolled = (label, kind, chart) => h("div", { class: `scroll ${kind}`, tabindex: 0, role: "region", "aria-label": label }, chart);

const W = 560, H = 200;

function axes(ticks, y, label) {
  return ticks.map((value) => [
    s("line", { x1: 46, x2: W - 6, y1: y(value), y2: y(value), stroke: "var(--line)" }),
    s("text", { x: 40, y: y(value) + 4, "text-anchor": "end" }, label(value)),
  ]);
}

// `bands`: {"0".."7": survival by position, and share of the decodes}.
export function survival(bands) {
  const known = Object.keys(bands ?? {}).filter((name) => bands[name].survival?.length).sort();
  const present = known.filter((name) => bands[name].share > 0), names = present.length ? present : known;
  if (!names.length) return empty("no drafts were verified yet");
  const depth = Math.max(...names.map((name) => bands[name].survival.length));
  const x = (i) => 46 + i * (W - 60) / depth, y = (value) => 12 + 160 * (1 - value);
  const points = (values) => values.map((value, i) => `${x(i + 1)},${y(value)}`);
  const lines = names.map((name) => {
    return s("polyline", { points: [`${x(0)},${y(1)}`, ...points(bands[name].survival)].join(" "), fill: "none", stroke: colour(name), "stroke-width": 2 });
  });
  const steps = Array.from({ length: depth }, (_, i) => s("text", { x: x(i + 1), y: 190, "text-anchor": "middle" }, String(i + 1)));
  return [
    scrolled("Survival", "chart", s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Probability that the first i draft tokens are all accepted, by band" },
      axes([0, 0.25, 0.5, 0.75, 1], y, (value) => number(value, 2)), lines, steps)),
    legend(names.map((name) => [`band ${name}${bands[name].share > 0 ? `, ${share(bands[name].share)} of the decodes` : ""}`, colour(name)])),
    h("p", { class: "empty" }, "Probability that the first i draft tokens are all accepted, by position i. A band is where a request’s own acceptance lies; 7 accepts most."),
  ];
}

const CHANGES = new Set(["control_group", "fallen_back", "canary_ended", "frozen"]);

export function throughput(decisions) {
  const plotted = decisions.filter((item) => item.evidence.throughput).sort((a, b) => a.at - b.at);
  const values = plotted.map((item) => item.evidence.throughput);
  if (plotted.length < 2 || !values.length) return empty("nothing ran lately");
  const wide = 1100, top = 1.08 * Math.max(...values), first = plotted[0].at, span = Math.max(1, plotted[plotted.length - 1].at - first);
  const x = (at) => 60 + (wide - 70) * (at - first) / span, y = (value) => 10 + 150 * (1 - value / top);
  const line = s("polyline", { points: plotted.map((item) => `${x(item.at)},${y(item.evidence.throughput)}`).join(" "), fill: "none", stroke: colour(0), "stroke-width": 2.4 });
  const marks = plotted.filter((item, at) => CHANGES.has(item.reason) && plotted[at - 1]?.reason !== item.reason).map((item) =>
    s("line", { x1: x(item.at), x2: x(item.at), y1: 8, y2: 160, stroke: "var(--soft)", "stroke-dasharray": "2 3" }, s("title", {}, `${clock(item.at)} ${item.reason}`)));
  const scale = [0, 0.5, 1].map((part) => [s("line", { x1: 60, x2: wide - 10, y1: y(top * part), y2: y(top * part), stroke: "var(--line)" }),
    s("text", { x: 54, y: y(top * part) + 4, "text-anchor": "end" }, number(top * part))]);
  return [
    scrolled("Throughput", "chart long", s("svg", { viewBox: `0 0 ${wide} 185`, role: "img", "aria-label": "Measured throughput over time" }, scale, marks, line,
      s("text", { x: 60, y: 180 }, clock(first)), s("text", { x: wide - 10, y: 180, "text-anchor": "end" }, clock(first + span)))),
    h("p", { class: "empty" }, "Tokens per second and engine; a dotted line is the begin of a control window of all engines, of a fall back or of a freeze, or the end of a canary."),
  ];
}
