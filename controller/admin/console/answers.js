// Shows the reply to a dry run or an error: changes, forecast, faults.

import { empty, h, table } from "./dom.js";
import { isKnown, number, percent, rowName, servingRows, text } from "./format.js";

export function diff(changes) {
  const rows = changes.map((item) => Array.isArray(item) ? item : [item.field, item.before, item.after]);
  if (!rows.length) return empty("Nothing would change.");
  const list = table("Changes", [["field"], ["before"], ["after"]], rows.map(([field, before, after]) => [
    { cell: h("code", {}, field || "everything"), class: "wrap" }, { cell: h("del", {}, text(before, field)), class: "wrap" },
    { cell: h("ins", {}, text(after, field)), class: "wrap" }]));
  list.classList.add("diff");
  return list;
}

const arrow = (before, after) => before === after ? before : `${before} → ${after}`;

function poolForecast({ pool, today, then, gain_ratio: gain, unknown }) {
  const head = h("h3", {}, `Pool ${pool}`);
  if (!today || !then) return [head, empty(unknown || "nothing is known")];
  const names = servingRows({ ...today.k, ...then.k });
  return [head,
    unknown && h("p", { class: "empty" }, `No prediction: ${unknown}.`),
    table(`Forecast for ${pool}`, [["class"], ["K", true], ["inter-token ms", true]], names.map((name) => [rowName(name),
      arrow(number(today.k[name]), number(then.k[name])), arrow(number(today.itl_ms[name], 2), number(then.itl_ms[name], 2))])),
    h("p", {}, `Throughput ${arrow(number(today.throughput), number(then.throughput))} tokens/s and engine`,
      isKnown(gain) && h("b", { class: gain < -0.001 ? "bad" : "good" }, ` ${percent(gain)}`), "."),
    h("p", { class: "empty" }, `${then.reason}: ${then.meaning}`)];
}

export function dryRun(answer) {
  return [diff(answer.changes), answer.forecast && (answer.forecast.length ? answer.forecast.map(poolForecast)
    : empty("No engine of this model runs: nothing can be forecast."))];
}

export function refusal(error) {
  if (!error.faults?.length) return h("p", { class: "bad" }, error.message);
  return h("ul", { class: "bad" }, error.faults.map((fault) => h("li", {}, h("code", {}, fault.field || "document"), ` ${fault.problem}`)));
}
