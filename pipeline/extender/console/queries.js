// Requests to the extender. Every answer is asked for again by its ETag, and 304 costs nothing.

const TOKEN = "springtide-token";  // For this tab alone, until it is closed.
const SECONDS = 20;
const LARGEST_CACHE = 50;
const LONGEST_PAUSE_SECONDS = 300;
const answers = new Map();
let aheadMilliseconds = 0;

// A token is needed, or another one.
export class Refused extends Error {}

// Seconds since 1970 by the extender's clock: the browser's may be wrong by hours.
export function now() {
  return (Date.now() + aheadMilliseconds) / 1000;
}

// Send this token from now on. Returns whether a header can have it.
export function setToken(token) {
  if (!/^[\x20-\x7e]+$/.test(token)) return false;
  answers.clear();
  sessionStorage.setItem(TOKEN, token);
  return true;
}

// The JSON object at a path, the same while it has not changed; null for what the extender does not
// know. An error may have `pauseSeconds`, for which the extender asks.
export async function ask(path) {
  const known = answers.get(path);
  const headers = {};
  if (known) headers["If-None-Match"] = known.etag;
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, {
    headers, cache: "no-store", signal: AbortSignal.timeout(SECONDS * 1000),
  }).catch(explain);
  const date = Date.parse(response.headers.get("Date"));
  if (!Number.isNaN(date)) aheadMilliseconds = date - Date.now();
  if (response.status === 304 && known) return known.document;
  const text = await response.text().catch(explain);
  const document = parse(text);
  if (response.ok && document) {
    answers.delete(path);
    const etag = response.headers.get("ETag");
    if (etag) answers.set(path, { etag, document });
    if (answers.size > LARGEST_CACHE) answers.delete(answers.keys().next().value);
    return document;
  }
  if (response.status === 404 && document?.Error) return null;
  const why = document?.Error ? [document.Error, document.Hint].filter(Boolean).join("; ")
    : `the answer has status ${response.status} and is not of an extender`;
  if (response.status === 401) throw new Refused(why);
  const pause = Number(response.headers.get("Retry-After")) || 0;
  throw Object.assign(new Error(why), { pauseSeconds: Math.min(pause, LONGEST_PAUSE_SECONDS) });
}

function explain(error) {
  throw new Error(error.name === "TimeoutError" ? `no answer within ${SECONDS} seconds`
    : "the extender cannot be reached");
}

// The object that a text is as JSON, else null.
function parse(text) {
  try {
    const document = JSON.parse(text);
    return typeof document === "object" && !Array.isArray(document) ? document : null;
  } catch {
    return null;
  }
}
