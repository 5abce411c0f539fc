// The audit: every write and every rejected one, with caller, time, source, and values before and after.

import { call } from "./api.js";
import { empty, h, section, show, table } from "./dom.js";
import { moment, text } from "./format.js";

function row(entry) {
  const changes = entry.changes.map(([field, before, after]) => `${field}: ${text(before, field)} → ${text(after, field)}`);
  if (entry.changes_left_out) changes.push(`${entry.changes_left_out} more`);
  const lines = [entry.message, ...changes, entry.comment && `“${entry.comment}”`].filter(Boolean);
  return [{ cell: moment(entry.at), class: "whole" }, { cell: entry.who + (entry.role ? ` (${entry.role})` : ""), class: "wrap" }, entry.source || "–", entry.action.replaceAll("_", " "),
    { cell: entry.subject || "–", class: "wrap" }, { cell: entry.result, class: entry.result === "done" ? "good" : "bad" },
    { cell: lines.map((line) => h("div", {}, line)), class: "wrap" }];
}

export function audit(page) {
  const entries = h("div", {}), search = h("input", { type: "search", placeholder: "who, what or which model", oninput: () => draw() });
  let loaded = [], limit = 100;
  page.replaceChildren(section("Audit", "", h("div", { class: "row" }, h("label", {}, "Show only", search),
    h("button", { type: "button", onclick: () => { limit = Math.min(1000, limit + 300); refresh().catch(() => {}); } }, "Load more")), entries));

  function draw() {
    const words = search.value.trim().toLowerCase();
    const rows = loaded.filter((entry) => JSON.stringify(entry).toLowerCase().includes(words)).map(row);
    show(entries, rows.length ? table("Audit", [["when"], ["who"], ["from"], ["what"], ["about"], ["result"], ["changes"]], rows) : empty("nothing yet"));
  }

  async function refresh() {
    loaded = (await call(`audit?limit=${limit}`)).entries;
    draw();
  }

  return { refresh, everyS: 2, leave() {} };
}
