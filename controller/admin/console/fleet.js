// The pools of the fleet, and one pool in full: its K, the reason, the evidence, the gain.

import { call } from "./api.js";
import { throughput, heatMap, survival } from "./charts.js";
import { empty, h, numbers, section, show, table } from "./dom.js";
import { clock, duration, controlGroup, interval, isKnown, kText, ms, number, percent } from "./format.js";

// Every shown pool is read every second; with more pools than this, a filter chooses.
const POOLS_LIMIT = 24;
// A record without a heartbeat expires after 4 s: an older time comes from a clock that differs.
const FRESH_S = 6;

const keyOf = (item) => `${item.model}\n${item.pool}`;
const query = (key) => {
  const [model, pool] = key.split("\n");
  return `model=${encodeURIComponent(model)}&pool=${encodeURIComponent(pool)}`;
};

function summary(why) {
  if (!why) return [h("p", { class: "why empty" }, "No decision was made yet.")];
  const step = why.step_s ?? {}, parts = [[why.is_estimate ? "K now, estimated, by class" : "K now, by class", kText(why.k, why.bands)]];
  if (Object.entries(why.k_advised ?? {}).some(([row, k]) => why.k?.[row] !== k)) parts.push(["K advised", kText(why.k_advised, why.bands)]);
  parts.push(
    ["running decodes", number(why.running_decodes, 1)],
    ["measured tokens/s", number(why.throughput?.measured)],
    ["predicted tokens/s", number(why.throughput?.predicted_in_force)],
    ["static K, predicted tokens/s", number(why.throughput?.predicted_static)],
    ...controlGroup(why.control_group),
    ["gain over static K, predicted", percent(why.predicted_gain_over_static_ratio)],
    ["the engines’ choice would add", percent(why.predicted_gain_ratio)],
    ["step in ms, measured / predicted", `${ms(step.measured)} / ${ms(step.predicted)}`],
    ["schedule version", number(why.version)]);
  if (why.canary) parts.push(["canary's gain in throughput", interval(why.canary.throughput_gain_ratio)]);
  return [h("p", { class: "why" }, h("b", {}, why.reason), " ", why.meaning), numbers(parts)];
}

function overview(pools, engines, whys, chosen, choose) {
  const rows = pools.map((key) => {
    const [model, pool] = key.split("\n"), members = engines.filter((item) => keyOf(item) === key), why = whys.get(key);
    const pick = h("button", { type: "button", "aria-pressed": String(key === chosen), onclick: () => choose(key) }, `${model} · ${pool}`);
    return [pick, number(members.length), why?.mode, why?.reason ?? "no decision yet", { cell: kText(why?.k, why?.bands), class: "wrap" },
      number(why?.running_decodes, 1), number(why?.throughput?.measured), percent(why?.control_group?.gain_ratio?.mean), percent(why?.predicted_gain_over_static_ratio)];
  });
  if (!rows.length) return empty("No engine is registered and no schedule was published. Start an engine with this Redis.");
  return table("Pools", [["model · pool"], ["engines", true], ["mode"], ["why"], ["K now"], ["running decodes", true],
    ["tokens/s measured", true], ["over static K, measured", true], ["predicted", true]], rows);
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
  return table("Decisions", [["time"], ["reason"], ["best would gain", true], ["K"]], decisions.slice(0, 14).map((item) =>
    [{ cell: clock(item.at), class: "whole" }, { cell: item.reason, class: "wrap" }, percent(item.predicted_gain_ratio), { cell: kText(item.k, item.evidence?.bands), class: "wrap" }]));
}

export function fleet(page) {
  let chosen = sessionStorage.getItem("pool") ?? "", isOver = false;
  const places = Object.fromEntries(["overview", "now", "schedule", "survival", "throughput", "engines", "decisions", "days"].map((name) => [name, h("div", {})]));
  const search = h("input", { type: "search", placeholder: "model or pool", oninput: () => refresh().catch(() => {}) });
  const filter = h("div", { class: "row", hidden: true }, h("label", {}, "Show only", search)), count = h("p", { class: "empty" });
  page.replaceChildren(
    section("Fleet", "", filter, count, places.overview),
    section("Now", "", places.now),
    section("K by class, band and running decodes", "half", places.schedule),
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
    const schedule = schedules.find((item) => keyOf(item) === chosen);
    show(places.overview, overview(pools, engines, whys, chosen, choose));
    show(places.now, ...summary(why));
    const rows = why?.is_estimate ? why.schedule : schedule; // where engines choose: the controller's estimate
    show(places.schedule, heatMap(rows?.classes, isKnown(why?.running_decodes) ? why.running_decodes : null));
    show(places.survival, survival(why?.bands));
    show(places.throughput, throughput(decisions));
    show(places.engines, engineTable(engines.filter((item) => !chosen || keyOf(item) === chosen), now));
    show(places.days, days(why?.control_group_days));
    show(places.decisions, decisionTable(decisions));
  }

  return { refresh, everyS: 1, leave: () => { isOver = true; } };
}
