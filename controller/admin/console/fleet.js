// The pools of the fleet, and one pool in full: its K, the reason, the evidence, the gain.

import { call } from "./api.js";
import { asked } from "./answers.js";
import { throughput, heatMap, survival } from "./charts.js";
import { empty, h, numbers, section, show, table } from "./dom.js";
import { clock, duration, controlGroup, interval, kText, ms, number, percent } from "./format.js";

// Every shown pool is read every second; with more pools than this, a filter chooses.
const POOLS_LIMIT = 24;
// A record without a heartbeat expires after 4 s: an older time comes from a clock that differs.
const FRESH_S = 6;
// Engines compute an answer in some hundredths of a second of their Python, so they are not asked every second.
const ASK_EVERY_MS = 15_000;

const keyOf = (item) => `${item.model}\n${item.pool}`;
const query = (key) => {
  const [model, pool] = key.split("\n");
  return `model=${encodeURIComponent(model)}&pool=${encodeURIComponent(pool)}`;
};

function summary(why) {
  if (!why) return [h("p", { class: "why empty" }, "No decision was made yet.")];
  const parts = [
    ["K now, mean by class", kText(why.k)],
    ["running decodes", number(why.evidence.decodes, 1)],
    ["measured tokens/s", number(why.evidence.throughput)],
    ...controlGroup(why.control_group),
    ["step in ms, measured", ms(why.evidence.step_s)],
    ["schedule version", number(why.version)]];
  for (const [name, measures] of Object.entries(why.evidence.slo ?? {}))
    for (const [measure, goal] of Object.entries(measures)) parts.push([`${name}: ${measure.toUpperCase()} ${goal.statistic} ${number(goal.goal_ms)} ms`, goalText(goal)]);
  if (why.override) parts.unshift(["K is fixed", why.override.k === null ? "as when the freeze began" : number(why.override.k)]);
  if (why.evidence.canary) parts.push(["canary's gain in throughput", interval(why.evidence.canary.throughput_gain_ratio)]);
  return [h("p", { class: "why" }, h("b", {}, why.reason), " ", why.meaning), numbers(parts)];
}

// The share of requests within a latency goal, what is left of the day's budget, and the margin of its bound.
function goalText({ attained_ratio: attained, budget_left_ratio: left, margin, is_unreachable: isUnreachable }) {
  const parts = Object.entries(attained).filter(([, share]) => share !== null).map(([window, share]) => `${number(100 * share, 1)} % in ${window}`);
  if (left !== null) parts.push(`budget left ${number(100 * left)} %`);
  if (margin !== undefined) parts.push(`margin ${number(margin, 2)}`);
  return [...parts, ...isUnreachable ? ["unreachable: no K keeps it"] : []].join(", ") || "no request has ended yet";
}

function overview(pools, engines, whys, chosen, choose) {
  const rows = pools.map((key) => {
    const [model, pool] = key.split("\n"), members = engines.filter((item) => keyOf(item) === key), why = whys.get(key);
    const pick = h("button", { type: "button", "aria-pressed": String(key === chosen), onclick: () => choose(key) }, `${model} · ${pool}`);
    return [pick, number(members.length), why?.mode, why?.reason ?? "no decision yet", { cell: kText(why?.k), class: "wrap" },
      number(why?.evidence.decodes, 1), number(why?.evidence.throughput), percent(why?.control_group?.gain_ratio?.mean)];
  });
  if (!rows.length) return empty("No engine is registered and no schedule was published. Start an engine with this Redis.");
  return table("Pools", [["model · pool"], ["engines", true], ["mode"], ["why"], ["K now"], ["running decodes", true],
    ["tokens/s measured", true], ["over static K, measured", true]], rows);
}

function days(dailyGains) {
  if (!dailyGains?.length) return empty("No window of the control group was compared in the last 30 days.");
  return table("Gain by day", [["day (UTC)"], ["gain in throughput", true], ["95 % interval", true], ["gain in latency", true], ["95 % interval", true], ["windows", true]],
    dailyGains.map((item) => [item.day, ...[item.throughput_gain_ratio, item.itl_gain_ratio].flatMap((gain) => [percent(gain?.mean), interval(gain, "too few windows")]),
      number(item.windows)]));
}

function engineTable(engines, now) {
  if (!engines.length) return empty("no engine is registered");
  return table("Engines", [["engine"], ["drafter"], ["vLLM"], ["K max", true], ["version", true], ["heartbeat", true]], engines.map((item) => {
    const age = now - item.heartbeat_at, isFresh = Math.abs(age) < FRESH_S;
    const text = item.draining ? "draining" : isFresh ? `${number(Math.max(0, age))} s ago` : `its clock is ${duration(Math.abs(age))} ${age > 0 ? "behind" : "ahead"}`;
    return [{ cell: item.engine_id, class: "wrap" }, item.method, item.vllm_version, number(item.k_max), number(item.schedule_version),
      { cell: text, class: `number ${isFresh ? "good" : "bad"}` }];
  }));
}

function decisionTable(decisions) {
  if (!decisions.length) return empty("none yet");
  return table("Decisions", [["time"], ["reason"], ["mean K"]], decisions.slice(0, 14).map((item) =>
    [{ cell: clock(item.at), class: "whole" }, { cell: item.reason, class: "wrap" }, { cell: kText(item.k), class: "wrap" }]));
}

export function fleet(page) {
  let chosen = sessionStorage.getItem("pool") ?? "", isOver = false, said = { key: null, at: -Infinity };
  const places = Object.fromEntries(["overview", "now", "said", "loads", "survival", "throughput", "engines", "decisions", "days"].map((name) => [name, h("div", {})]));
  const search = h("input", { type: "search", placeholder: "model or pool", oninput: () => refresh().catch(() => {}) });
  const filter = h("div", { class: "row", hidden: true }, h("label", {}, "Show only", search)), count = h("p", { class: "empty" });
  page.replaceChildren(
    section("Fleet", "", filter, count, places.overview),
    section("Now", "", places.now),
    section("What engines would choose", "half", places.said),
    section("K by running decodes", "half", places.loads),
    section("Acceptance by band", "half", places.survival),
    section("Throughput", "", places.throughput),
    section("Engines", "half", places.engines),
    section("What adaptive K gained over the static K, by day", "half", places.days),
    section("Decisions", "", places.decisions));

  function choose(key) {
    chosen = key;
    sessionStorage.setItem("pool", key);
    refresh().catch(() => {});
  }

  // Asks engines of the chosen pool; the answers are shown with the next refresh.
  async function ask() {
    if (!chosen || (said.key === chosen && performance.now() - said.at < ASK_EVERY_MS)) return;
    const key = chosen, shown = said.key === key ? said : {};
    said = { ...shown, key, at: performance.now() };
    const [explained, loads] = await Promise.all(["explain", "k_by_load"].map((kind) => call(`ask?${query(key)}&kind=${kind}`).catch(() => null)));
    if (said.key === key) said = { ...said, explained, loads };
  }

  async function refresh() {
    const [{ schedules }, { engines, now }] = await Promise.all([call("schedules"), call("engines")]);
    const all = [...new Set([...engines, ...schedules].map(keyOf))].sort(), words = search.value.trim().toLowerCase();
    const pools = all.filter((key) => key.replace("\n", " · ").toLowerCase().includes(words)).slice(0, POOLS_LIMIT);
    if (!all.includes(chosen)) chosen = pools[0] ?? "";
    const shownPools = chosen && !pools.includes(chosen) ? [...pools, chosen] : pools;
    const explanations = await Promise.all(shownPools.map((key) => call(`explain?${query(key)}`).catch(() => null)));
    const decisions = chosen ? (await call(`decisions?${query(chosen)}&limit=240`)).decisions : [];
    if (isOver) return;
    filter.hidden = all.length <= POOLS_LIMIT;
    count.textContent = pools.length < all.length ? `${pools.length} of ${all.length} pools are shown.` : "";
    const whys = new Map(shownPools.map((key, at) => [key, explanations[at]])), why = whys.get(chosen);
    show(places.overview, overview(pools, engines, whys, chosen, choose));
    show(places.now, ...summary(why));
    ask();
    show(places.said, said.key === chosen && said.explained ? asked(said.explained, "the law’s choice") : empty("no engine was asked yet"));
    show(places.loads, heatMap(said.key === chosen ? said.loads?.k_by_load : null, why?.evidence.decodes, said.loads?.unknown));
    show(places.survival, survival(why?.evidence.bands));
    show(places.throughput, throughput(decisions));
    show(places.engines, engineTable(engines.filter((item) => !chosen || keyOf(item) === chosen), now));
    show(places.days, days(why?.control_group_days));
    show(places.decisions, decisionTable(decisions));
  }

  return { refresh, everyS: 1, leave: () => { isOver = true; } };
}
