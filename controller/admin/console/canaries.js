// Shows, promotes and aborts canaries. They are started on the policies' page.

import { call, confirm, path } from "./api.js";
import { diff, refusal } from "./answers.js";
import { empty, h, numbers, section, show } from "./dom.js";
import { interval, moment, number, share } from "./format.js";

function card(item, act) {
  const { canary, evidence = {} } = item, model = canary.policy.model, isRunning = item.outcome === null;
  const lost = Object.entries(evidence.lost_blocks ?? item.lost ?? {}).map(([cause, count]) => `${count} ${cause}`).join(", ") || "none";
  return section(`${model}: ${isRunning ? "runs" : `ended, ${item.outcome}`}`, "half",
    numbers([
      ["began", moment(item.started_at)], [isRunning ? "ends at the latest" : "ended", moment(isRunning ? item.started_at + canary.max_duration_s : item.ended_at)],
      ["blocks", `${number(evidence.blocks ?? item.blocks.length)} of ${number(evidence.blocks_at_most)}`], ["blocks lost", lost],
      ["gain in throughput", interval(evidence.throughput_gain_ratio)], ["gain in latency", interval(evidence.itl_gain_ratio)],
      ["share of the time", share(canary.share_ratio)], ["window, s", number(canary.window_s)]]),
    isRunning && h("div", { class: "row" },
      h("button", { type: "button", class: "primary", onclick: () => act(item, `canary-promotions/${path(model)}`, "POST", `Make the canary's policy the policy of ${model}, now?`) }, "Promote"),
      h("button", { type: "button", onclick: () => act(item, `canaries/${path(model)}`, "DELETE", `End the canary of ${model}? The present policy stays.`) }, "Abort")),
    h("details", {}, h("summary", {}, "Its policy"), h("pre", { class: "mono scroll", tabindex: 0 }, JSON.stringify(canary.policy, null, 2))));
}

export function canaries(page) {
  const problem = h("div", { role: "status", class: "problem" });
  let latest = "";

  // Ends the canary that is shown. Another one may have begun since, so the experiment's id is sent.
  async function act({ experiment_id: etag }, place, method, question) {
    try {
      const preview = await call(place, { method, etag, dry: true });
      const comment = await confirm(question, preview.changes.length ? diff(preview.changes) : "");
      if (comment !== null) await call(place, { method, etag, comment });
      show(problem);
      await refresh();
    } catch (error) {
      show(problem, refusal(error));
    }
  }

  async function refresh() {
    const { canaries: listed } = await call("canaries");
    const text = JSON.stringify(listed);
    if (text === latest) return;
    latest = text;
    const full = await Promise.all(listed.map((item) => call(`canaries/${path(item.canary.policy.model)}`)));
    full.sort((a, b) => (a.outcome === null ? 0 : 1) - (b.outcome === null ? 0 : 1) || b.started_at - a.started_at);
    page.replaceChildren(problem, ...full.map((item) => card(item, act)));
    if (!full.length) page.append(section("Canaries", "", empty("No canary ran yet. Change a policy and choose “Try as canary”.")));
  }

  return { refresh, everyS: 3, leave() {} };
}
