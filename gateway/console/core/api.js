// Calls to the gateway. The key is in the session storage of the page's tabs and is sent as a header only.

import { retryLost } from "./retry.js";

const STORED = "dovecote.key";
const AUTHOR = "dovecote.author";
const SCOPES = "dovecote.scopes";
const PATIENCE = 20_000;
const UPLOAD_PATIENCE = 300_000;
const RETRY_DELAYS = [250, 1000];

let refused = () => {};

/** Called when the gateway refuses a key that it accepted before. */
export function onRefused(callback) {
  refused = callback;
}

/** The key of this tab; once known, its scopes and the id under which the gateway shows its messages. */
export const session = {
  key: () => sessionStorage.getItem(STORED),
  keep: (key) => sessionStorage.setItem(STORED, key),
  author: () => sessionStorage.getItem(AUTHOR),
  isKnownAs: (author) => sessionStorage.setItem(AUTHOR, author),
  hasScopes: (scopes) => sessionStorage.setItem(SCOPES, scopes.join(" ")),
  may: (scope) => sessionStorage.getItem(SCOPES)?.split(" ").includes(scope) ?? true,
  forget: () => [STORED, AUTHOR, SCOPES].forEach((name) => sessionStorage.removeItem(name)),
};

const ANSWER_WITHIN = 250;
const tabs = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("dovecote.session");

/** Give the key to new tabs of this page that ask for it; `onLeft` is called when another tab leaves. */
export function shareSession(onLeft) {
  if (tabs === null) return;
  tabs.onmessage = ({ data }) => {
    if (data.type === "ask" && session.key() !== null) tabs.postMessage({ type: "key", key: session.key() });
    if (data.type === "left" && data.key === session.key()) onLeft();
  };
}

/** End the session in every tab that uses this tab's key. */
export function endSession() {
  if (session.key() !== null) tabs?.postMessage({ type: "left", key: session.key() });
  session.forget();
}

/** The key that an open tab of this page has, or null. */
export function askOtherTabs() {
  if (tabs === null || session.key() !== null) return Promise.resolve(null);
  const own = new BroadcastChannel("dovecote.session");
  return new Promise((resolve) => {
    own.onmessage = ({ data }) => data.type === "key" && resolve(data.key);
    own.postMessage({ type: "ask" });
    setTimeout(() => resolve(null), ANSWER_WITHIN);
  }).finally(() => own.close());
}

const VERSIONS = new WeakMap(); // what the gateway answered → the ETag of it

/** The version of a record or a file that `call` or `download` returned; undefined for items of lists. */
export function versionOf(answer) {
  return VERSIONS.get(answer);
}

function withVersion(answer, response) {
  const etag = response.headers.get("ETag");
  if (etag !== null && typeof answer === "object" && answer !== null) VERSIONS.set(answer, etag);
  return answer;
}

/** A failed call; `status` 0 means that there was no response. `current` is what another change made of a record. */
export class Problem extends Error {
  constructor({ status = 0, title = "", detail = "", errors = [], current = null }) {
    super([title, detail].filter(Boolean).join(": ") || `The gateway answered ${status}`);
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.errors = errors;
    this.current = current;
  }
}

/** The absolute address of a path below the page's own folder. */
export function address(path) {
  return new URL(path, new URL("./", document.baseURI));
}

/** The address of the socket, beside the page. */
export function socketAddress() {
  const url = address("ws");
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

/** A random word, for idempotency keys and names. */
export function word(length = 16) {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(bytes, (byte) => "0123456789abcdefghjkmnpqrstvwxyz"[byte & 31]).join("");
}

/** Call the gateway; returns the decoded body or throws a Problem. With `match` only that version is changed. */
export async function call(method, path, { body, key = session.key(), repeat = word(), credentials, patience, match } = {}) {
  let attempts = 0;
  const onAttempt = (count) => (attempts = count);
  const response = await send(method, path, { body, key, repeat, credentials, patience, match, onAttempt });
  const answer = await decode(response);
  if (response.ok) return withVersion(answer, response);
  const problem = problemOf(response, answer);
  if (attempts > 0 && isDone(method, body, problem)) return problem.current;
  if (response.status === 401 && key !== null && key === session.key()) refused(problem);
  throw problem;
}

/** Whether a repeated request was refused because the first one, whose answer was lost, had done what it asks. */
function isDone(method, body, { status, current }) {
  if (method === "DELETE") return status === 404;
  return status === 412 && current !== null && Object.entries(body ?? {}).every(([name, value]) => isSame(value, current[name]));
}

/** Whether the gateway has a value as it was sent; objects may have defaults beside it. */
function isSame(sent, stored) {
  if (typeof sent !== "object" || sent === null) return sent === stored;
  const names = Object.keys(sent);
  return typeof stored === "object" && stored !== null && (!Array.isArray(sent) || sent.length === stored.length) && names.every((name) => isSame(sent[name], stored[name]));
}

/** Store the bytes of a file, of this version or (`isNew`) where none is; returns the decoded body or throws a Problem. */
export async function upload(path, file, { method = "PUT", match, isNew = false } = {}) {
  const response = await send(method, path, { raw: file, key: session.key(), repeat: word(), patience: UPLOAD_PATIENCE, match, isNew });
  const answer = await decode(response);
  if (response.ok) return answer;
  throw problemOf(response, answer);
}

/** The bytes of a path that needs the key. */
export async function download(path) {
  const response = await send("GET", path, { key: session.key(), patience: UPLOAD_PATIENCE });
  if (!response.ok) throw problemOf(response, await decode(response));
  return withVersion(await response.blob(), response);
}

function problemOf(response, answer) {
  const { status } = response;
  const problem = new Problem(typeof answer === "object" && answer !== null ? { ...answer, status } : { status });
  withVersion(problem.current, response);
  return problem;
}

/** The status and body of a public path, whatever the status. */
export async function probe(path) {
  const response = await send("GET", path, { key: null });
  return { status: response.status, body: await decode(response) };
}

/** The items of a paged list, up to a number of pages while `goOn` of the last; `more`: there are others. */
export async function list(path, pages = 2, goOn = () => true) {
  const items = [];
  let cursor = null;
  for (let page = 0; page < pages; page += 1) {
    const query = new URLSearchParams({ limit: "100", ...(cursor === null ? {} : { cursor }) });
    const answer = await call("GET", `${path}${path.includes("?") ? "&" : "?"}${query}`);
    items.push(...answer.items);
    cursor = answer.next ?? null;
    if (cursor === null || !goOn(items.at(-1))) break;
  }
  items.more = cursor !== null;
  return items;
}

async function send(method, path, { body, raw, key, repeat, patience = PATIENCE, credentials = "omit", match, isNew = false, onAttempt = () => {} }) {
  const headers = { Accept: "application/json" };
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (raw !== undefined) headers["Content-Type"] = "application/octet-stream";
  if (method === "POST") headers["Idempotency-Key"] = repeat;
  if (match !== undefined) headers["If-Match"] = match;
  if (isNew) headers["If-None-Match"] = "*";
  const request = {
    method,
    headers,
    body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
    cache: "no-store",
    credentials,
    redirect: "error",
    signal: AbortSignal.timeout(patience),
  };
  const delays = raw === undefined ? RETRY_DELAYS : []; // a POST has its key, and other methods are safe to repeat
  const attempt = (count) => {
    onAttempt(count);
    return fetch(address(path), request);
  };
  try {
    return await retryLost(attempt, { delays, isLost });
  } catch (error) {
    if (isRefusedHeader(error)) {
      throw new Problem({ status: 401, title: "This key contains characters that keys cannot have" });
    }
    throw new Problem({ title: "The gateway cannot be reached" });
  }
}

/** Browsers report as a TypeError that a request had no response, and that a header cannot be sent. */
function isLost(error) {
  return error instanceof TypeError && !isRefusedHeader(error);
}

function isRefusedHeader(error) {
  return error instanceof TypeError && /header/i.test(error.message);
}

async function decode(response) {
  const text = await response.text();
  if (!/\bjson\b/.test(response.headers.get("Content-Type") ?? "")) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
