// Requests to the extender. Every answer is asked for again by its ETag, and 304 costs nothing.

const TOKEN = "springtide-token";  // For this tab alone, until it is closed.
const SECONDS = 20;
const LARGEST_CACHE = 50;
const answers = new Map();

export class Refused extends Error {}

export function setToken(token) {
  answers.clear();
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

// The JSON document at a path, the same object while it has not changed; null for 404.
export async function ask(path) {
  const known = answers.get(path);
  const headers = {};
  if (known?.etag) headers["If-None-Match"] = known.etag;
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, {
    headers, cache: "no-store", signal: AbortSignal.timeout(SECONDS * 1000),
  });
  if (response.status === 304 && known) return known.document;
  if (response.status === 404) return null;
  const document = await response.json().catch(() => null);
  if (response.status === 401 || response.status === 403) {
    throw new Refused(document?.Error ?? "the extender refuses this client");
  }
  if (!response.ok || document === null) {
    throw new Error(document?.Error ?? `the extender answers ${response.status}`);
  }
  answers.delete(path);
  answers.set(path, { etag: response.headers.get("ETag"), document });
  if (answers.size > LARGEST_CACHE) answers.delete(answers.keys().next().value);
  return document;
}
