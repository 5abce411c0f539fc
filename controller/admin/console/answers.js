// Shows the reply to a dry run or an error: changes, forecast, faults.

import { empty, h, table } from "./dom.js";
import { isKnown, number, percent, text } from "./format.js";

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

// What engines of a pool say: the means over those that answered. `then` names the choice beside that in force.
export function asked({ pool, engines, answers, silent, in_force: now, chosen, static: fixed, gain_ratio: gain, unknown, tpot_ms: measured, predicted_tpot_ms: predicted, missed_goals: missed = {} }, then = "then") {
  const missing = Object.entries(silent).map(([name, why]) => h("p", { class: "bad" }, `${name}: ${why}`));
  if (!now || !chosen) return [empty(unknown || "nothing is known"), missing];
  const names = Object.keys({ ...now.k, ...chosen.k }).sort();
  return [
    table(`What engines of ${pool} say`, [["class"], ["mean K", true], ["inter-token ms", true], ["p95 of TPOT, predicted", true], ["measured", true]], names.map((name) => [name,
      arrow(number(now.k[name], 1), number(chosen.k[name], 1)), arrow(number(now.itl_ms[name], 2), number(chosen.itl_ms[name], 2)),
      arrow(number(predicted.in_force?.[name]?.p95, 2), number(predicted.chosen?.[name]?.p95, 2)), number(measured[name]?.p95, 2)])),
    Object.entries(missed).map(([name, { statistic, predicted_ms: ms, limit_ms: limit }]) => h("p", { class: "bad" },
      `${name}: its latency goal is missed at this load: ${statistic} of TPOT ${number(ms, 2)} ms predicted, at most ${number(limit, 2)} ms allowed.`)),
    h("p", {}, `Throughput ${arrow(number(now.throughput), number(chosen.throughput))} tokens/s and engine`,
      isKnown(gain) && h("b", { class: gain < -0.001 ? "bad" : "good" }, ` ${percent(gain)}`), `; with the static K ${number(fixed?.throughput)}.`),
    h("p", { class: "empty" }, `K in force → ${then}, predicted by ${answers.length} of ${engines} engines.`), missing];
}

export function dryRun(answer) {
  return [diff(answer.changes), answer.forecast && (answer.forecast.length ? answer.forecast.map((pool) => [h("h3", {}, `Pool ${pool.pool}`), asked(pool)])
    : empty("No engine of this model runs: nothing can be forecast."))];
}

export function refusal(error) {
  if (!error.faults?.length) return h("p", { class: "bad" }, error.message);
  return h("ul", { class: "bad" }, error.faults.map((fault) => h("li", {}, h("code", {}, fault.field || "document"), ` ${fault.problem}`)));
}
