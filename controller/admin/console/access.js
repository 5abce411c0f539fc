// Who gets in: freezes are under the header of every page; here are client keys and the admin API's tokens.

import { call, confirm } from "./api.js";
import { refusal } from "./answers.js";
import { empty, h, section, table } from "./dom.js";
import { moment, text } from "./format.js";

const DAY_S = 86400;
const never = (at) => at === null ? "never" : moment(at);
const secret = (label, value) => h("p", {}, `${label}, shown only this once: `, h("code", {}, value));

export function access(page, me) {
  const keys = h("div", {}), tokens = h("div", {}), said = h("div", { role: "status" });
  const isAdmin = me.role === "admin";
  page.replaceChildren(
    section("New secrets and refusals", "", said),
    section("Client keys", "half", keys),
    section("Tokens of this API", "half", tokens));
  said.replaceChildren(empty(isAdmin ? "What is made here is shown here, once." : `You are ${me.name}, ${me.role}: only an admin makes keys and tokens.`));

  async function act(work) {
    try {
      await work();
      await refresh();
    } catch (error) {
      said.replaceChildren(refusal(error));
    }
  }

  function expiry() {
    const days = h("input", { type: "number", min: 1, placeholder: "for ever" });
    return [h("label", {}, "days it is good for", days), () => days.value ? { expires_in_s: Number(days.value) * DAY_S } : {}];
  }

  function newKey() {
    const [expires, expiryOf] = expiry(), name = h("input", { placeholder: "none" });
    const requests = h("input", { type: "number", min: 1, placeholder: "no limit" }), perMinute = h("input", { type: "number", min: 1, placeholder: "no limit" });
    const make = () => act(async () => {
      const body = { ...(name.value && { traffic_class: name.value }), ...(requests.value && { requests_per_minute: Number(requests.value) }),
        ...(perMinute.value && { tokens_per_minute: Number(perMinute.value) }), ...expiryOf() };
      const made = await call("keys", { method: "POST", body });
      said.replaceChildren(secret(`Client key ${made.key_id}`, made.key));
    });
    return h("div", {}, h("div", { class: "fields" }, h("label", {}, "traffic class", name), h("label", {}, "requests per minute", requests),
      h("label", {}, "tokens per minute", perMinute), expires), h("button", { type: "button", class: "primary", onclick: make }, "Make a client key"));
  }

  function newToken() {
    const [expires, expiryOf] = expiry(), name = h("input", { placeholder: "night shift" });
    const role = h("select", {}, ["viewer", "operator", "admin"].map((item) => h("option", {}, item)));
    const make = () => act(async () => {
      const made = await call("tokens", { method: "POST", body: { name: name.value, role: role.value, ...expiryOf() } });
      said.replaceChildren(secret(`Token ${made.name} (${made.role})`, made.token));
    });
    return h("div", {}, h("div", { class: "fields" }, h("label", {}, "name", name), h("label", {}, "role", role), expires),
      h("button", { type: "button", class: "primary", onclick: make }, "Make a token"));
  }

  function buttons(place, label, id, field, body) {
    const rotate = () => act(async () => {
      if (await confirm(`Make a new secret for ${label}?`, field === "key" ? "The old key is good for one more hour." : "The old token is refused at once.") === null) return;
      const made = await call(`${place}/${id}/rotate`, { method: "POST", body });
      said.replaceChildren(secret(label, made[field]));
    });
    const revoke = () => act(async () => {
      const comment = await confirm(`Revoke ${label}?`, "It is refused at once.");
      if (comment !== null) await call(`${place}/${id}`, { method: "DELETE", comment });
    });
    return isAdmin && h("span", {}, h("button", { type: "button", onclick: rotate }, "Rotate"), " ", h("button", { type: "button", onclick: revoke }, "Revoke"));
  }

  async function refresh() {
    const { keys: found } = await call("keys");
    keys.replaceChildren(
      found.length ? table("Client keys", [["id"], ["class"], ["per minute"], ["expires"], [""]], found.map((key) => [h("code", {}, key.key_id), text(key.traffic_class),
        { cell: [key.requests_per_minute && `${key.requests_per_minute} requests`, key.tokens_per_minute && `${key.tokens_per_minute} tokens`].filter(Boolean).join(", ") || "no limit", class: "wrap" },
        never(key.expires_at), buttons("keys", `client key ${key.key_id}`, key.key_id, "key", { grace_s: 3600 })])) : empty("No client key: the gateway serves without one."),
      isAdmin ? newKey() : "");
    if (!isAdmin) return tokens.replaceChildren(empty("Only an admin sees them."));
    const { tokens: named } = await call("tokens");
    tokens.replaceChildren(
      named.length ? table("Tokens", [["name"], ["role"], ["expires"], ["made by"], [""]], named.map((item) => [{ cell: item.name, class: "wrap" }, item.role, never(item.expires_at),
        { cell: item.created_by, class: "wrap" }, buttons("tokens", `token ${item.name}`, item.token_id, "token", {})])) : empty("No named token yet."),
      newToken());
  }

  return { refresh, everyS: null, leave() {} };
}
