// Calls the admin API: the token is typed once; an error reply throws, with the faults by field.

import { by } from "./dom.js";

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = error?.code;
    this.faults = error?.faults ?? [];
  }
}

let token = sessionStorage.getItem("token") ?? "";
let asking = null;

function askForToken(why) {
  asking ??= new Promise((resolve) => {
    by("ask-why").textContent = why;
    by("ask").addEventListener("close", () => {
      token = by("token").value.trim();
      by("token").value = "";
      sessionStorage.setItem("token", token);
      asking = null;
      resolve();
    }, { once: true });
    by("ask").showModal();
  });
  return asking;
}

export async function call(path, { method = "GET", body, etag, comment, dry } = {}) {
  const url = new URL(`/admin/${path}`, location.origin);
  if (comment) url.searchParams.set("comment", comment);
  if (dry) url.searchParams.set("validate_only", "true");
  for (;;) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (etag !== undefined) headers[etag === null ? "If-None-Match" : "If-Match"] = etag === null ? "*" : `"${etag}"`;
    const answer = await fetch(url, { method, headers, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
    const payload = answer.status === 204 ? null : await answer.json().catch(() => null);
    if (answer.status === 401 || payload?.error?.code === "no_role") {
      await askForToken(payload?.error?.message ?? "The controller asks for a token of the admin API.");
      continue;
    }
    // What a write's reply says besides its result stays until the next write.
    if (method !== "GET") by("notice").textContent = answer.headers.get("x-specpilot-notice") ?? "";
    if (!answer.ok) throw new Refused(answer.status, payload?.error);
    return payload;
  }
}

export const path = (model) => model.split("/").map(encodeURIComponent).join("/");

// Shows the effect of a write and asks for a comment; returns the comment, or null when cancelled.
export function confirm(title, ...body) {
  by("confirm-title").textContent = title;
  by("confirm-body").replaceChildren(...body);
  by("confirm-comment").value = "";
  by("confirm").returnValue = "no";
  by("confirm").showModal();
  return new Promise((resolve) => by("confirm").addEventListener("close",
    () => resolve(by("confirm").returnValue === "yes" ? by("confirm-comment").value.trim() : null), { once: true }));
}
