// Client keys and the admin API's tokens. (Freezes are under the header of every page.)

import { call, confirm } from "./api.js";
import { diff, refusal } from "./answers.js";
import { empty, h, section, table } from "./dom.js";
import { moment, text } from "./format.js";
import { expiry, keyForm } from "./keys.js";

const HOUR_S = 3600;
const secret = (label, value) => h("p", {}, `${label}, shown only this once: `, h("code", {}, value));

const limits = (key) => [
  key.requests_per_minute && `${key.requests_per_minute} requests a minute`, key.tokens_per_minute && `${key.tokens_per_minute} tokens a minute`,
  key.max_concurrent_requests && `${key.max_concurrent_requests} requests at once`, key.k_max !== null && `K at most ${key.k_max}`,
].filter(Boolean).join(", ") || "none";

const ends = (at, now) => at === null ? "never" : at > now ? moment(at) : h("span", { class: "bad" }, `expired ${moment(at)}`);

export function access(page, me) {
  const keys = h("div", {}), tokens = h("div", {}), notice = h("div", { role: "status" });
  const isAdmin = me.role === "admin";
  page.replaceChildren(
    section("New secrets and refusals", "", notice),
    section("Client keys", "half", keys),
    section("Tokens of this API", "half", tokens));
  notice.replaceChildren(empty(isAdmin ? "What is made here is shown here, once." : `You are ${me.name}, ${me.role}: only an admin makes keys and tokens.`));

  async function act(work) {
    try {
      await work();
      await refresh();
    } catch (error) {
      notice.replaceChildren(refusal(error));
    }
  }

  function newKey() {
    const [form, bodyOf] = keyForm();
    const make = () => act(async () => {
      const made = await call("keys", { method: "POST", body: bodyOf() });
      notice.replaceChildren(secret(`Client key ${made.key_id}`, made.key));
    });
    return h("div", {}, form, h("button", { type: "button", class: "primary", onclick: make }, "Make a client key"));
  }

  function newToken() {
    const [expires, expiryOf] = expiry(), name = h("input", { placeholder: "night shift" });
    const role = h("select", {}, ["viewer", "operator", "admin"].map((item) => h("option", {}, item)));
    const make = () => act(async () => {
      const made = await call("tokens", { method: "POST", body: { name: name.value, role: role.value, ...expiryOf() } });
      notice.replaceChildren(secret(`Token ${made.name} (${made.role})`, made.token));
    });
    return h("div", {}, h("div", { class: "fields" }, h("label", {}, "name", name), h("label", {}, "role", role), expires),
      h("button", { type: "button", class: "primary", onclick: make }, "Make a token"));
  }

  async function change(key) {
    const [form, bodyOf] = keyForm(key), place = `keys/${key.key_id}`;
    const first = await confirm(`Change client key ${key.key_id}`, form);
    if (first === null) return;
    const body = bodyOf(), would = await call(place, { method: "PATCH", body, dry: true });
    const comment = await confirm(`Change client key ${key.key_id}?`, diff(would.changes));
    if (comment !== null) await call(place, { method: "PATCH", body, comment: comment || first });
  }

  async function rotate(place, label, item, field) {
    const [expires, expiryOf] = expiry(item.expires_at), hours = field === "key" && h("input", { type: "number", min: 0, value: "1" });
    const comment = await confirm(`Make a new secret for ${label}?`, h("p", {}, hours ? "The old key stays good for a while." : "The old token is refused at once."),
      h("div", { class: "fields" }, hours && h("label", {}, "hours that the old key is good", hours), expires));
    if (comment === null) return;
    const body = { ...(hours && { grace_s: HOUR_S * Number(hours.value) }), ...expiryOf() };
    const made = await call(`${place}/rotate`, { method: "POST", body, comment });
    notice.replaceChildren(secret(label, made[field]));
  }

  async function revoke(place, label) {
    const comment = await confirm(`Revoke ${label}?`, "It is refused at once.");
    if (comment !== null) await call(place, { method: "DELETE", comment });
  }

  function buttons(place, label, item, field) {
    const button = (text, work) => [h("button", { type: "button", onclick: () => act(work) }, text), " "];
    return isAdmin && h("span", {}, field === "key" && button("Change", () => change(item)), button("Rotate", () => rotate(place, label, item, field)),
      button("Revoke", () => revoke(place, label)));
  }

  const classes = (key) => text(key.traffic_class) + (key.allowed_classes === null ? "" : `; may ask for ${key.allowed_classes.join(", ") || "none"}`);

  async function refresh() {
    const { keys: keyList, now } = await call("keys");
    keys.replaceChildren(
      keyList.length ? table("Client keys", [["id"], ["class"], ["models"], ["limits"], ["expires"], [""]], keyList.map((key) => [{ cell: h("code", {}, key.key_id), class: "whole" }, { cell: classes(key), class: "wrap" },
        { cell: key.allowed_models === null ? "any" : key.allowed_models.join(", ") || "none", class: "wrap" }, { cell: limits(key), class: "wrap" },
        ends(key.expires_at, now), buttons(`keys/${key.key_id}`, `client key ${key.key_id}`, key, "key")])) : empty("No client key: the gateway serves without one."),
      isAdmin ? newKey() : "");
    if (!isAdmin) return tokens.replaceChildren(empty("Only an admin sees them."));
    const { tokens: named } = await call("tokens");
    tokens.replaceChildren(
      named.length ? table("Tokens", [["name"], ["role"], ["expires"], ["made by"], [""]], named.map((item) => [{ cell: item.name, class: "wrap" }, item.role, ends(item.expires_at, now),
        { cell: item.created_by, class: "wrap" }, buttons(`tokens/${item.token_id}`, `token ${item.name}`, item, "token")])) : empty("No named token yet."),
      newToken());
  }

  return { refresh, everyS: null, leave() {} };
}
