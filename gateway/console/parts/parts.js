// Components that the views share.

import { call } from "../core/api.js";
import htm from "../vendor/htm.mjs";
import { Icon } from "./icons.js";
import { h } from "../vendor/preact.mjs";
import { useCallback, useEffect, useRef, useState } from "../vendor/hooks.mjs";

export const html = htm.bind(h);

const WORDS = {
  ok: ["completed", "delivered", "approved", "answered", "ready", "succeeded", "done", "active", "alive", "enabled", "paired", "receiving"],
  busy: ["running", "sending", "pending", "queued", "retrying", "parked", "waiting", "with a person", "paused"],
  bad: ["failed", "dead", "lost", "denied", "unready", "ambiguous", "disabled", "not ready", "trouble", "stalled"],
};

/** The colour of a state; its name is always shown too. */
export function toneOf(state) {
  return Object.keys(WORDS).find((tone) => WORDS[tone].includes(state)) ?? "quiet";
}

/** What an empty page says: what it is for, and what to do first. */
export function Empty({ icon, title, children }) {
  return html`<div class="nothing"><${Icon} name=${icon} /><p class="headline">${title}</p><p>${children}</p></div>`;
}

/** Says that the key cannot change what is shown. */
export function LacksScope({ scope }) {
  return html`<p class="readonly">This key lacks the scope <code>${scope}</code>: it cannot change anything here.</p>`;
}

/** Links that choose one of several lists. */
export function Tabs({ label, chosen, options, address }) {
  return html`<nav class="tabs" aria-label=${label}><ul>${Object.entries(options).map(([name, title]) => html`<li key=${name}>
    <a href=${address(name)} aria-current=${name === chosen ? "true" : undefined}>${title}</a></li>`)}</ul></nav>`;
}

export function Badge({ state }) {
  return html`<span class=${`badge ${toneOf(state)}`}>${state}</span>`;
}

/** A time in the reader's time zone, with the exact time in the title. */
export function Moment({ time }) {
  if (!time) return null;
  const moment = new Date(time);
  const sameDay = moment.toDateString() === new Date().toDateString();
  const shown = sameDay ? moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  return html`<time dateTime=${time} title=${time}>${shown}</time>`;
}

export function span(milliseconds) {
  if (typeof milliseconds !== "number") return "";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export function bytes(count) {
  const power = Math.min(3, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return power === 0 ? `${count} B` : `${(count / 1024 ** power).toFixed(1)} ${["KiB", "MiB", "GiB"][power - 1]}`;
}

/** Plain output in a box that scrolls and can be focused. */
export function Output({ text, label, follow = false }) {
  const box = useRef(null);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follow]);
  return html`<pre class="output" tabIndex="0" aria-label=${label} ref=${box}>${text}</pre>`;
}

export function Trouble({ problem, retry }) {
  if (!problem) return null;
  const fields = (problem.errors ?? []).map(({ pointer, detail }) => html`<li><code>${pointer}</code> ${detail}</li>`);
  return html`<div class="trouble" role="alert">
    <p>${problem.message ?? String(problem)}</p>
    ${fields.length > 0 && html`<ul>${fields}</ul>`}
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** A secret that the gateway returns only once. */
export function Secret({ secret, label, onDone }) {
  const [copied, setCopied] = useState(false);
  const box = useRef(null);
  useEffect(() => box.current.focus(), [secret]);
  const copy = async () => {
    await navigator.clipboard.writeText(secret);
    setCopied(true);
  };
  return html`<div class="secret" role="status" tabIndex="-1" ref=${box}>
    <p>${label} It is shown only now: keep it.</p>
    <code>${secret}</code>
    <p class="row">
      <button type="button" onClick=${() => copy().catch(() => setCopied(false))}>${copied ? "Copied" : "Copy"}</button>
      <button type="button" onClick=${onDone}>I have stored it</button>
    </p>
  </div>`;
}

/** Links to files that came with a message or a result; only http(s) addresses become links. */
export function Files({ files }) {
  if (!files || files.length === 0) return null;
  return html`<ul class="files">${files.map((file) => html`<li key=${file.sha256 ?? file.name}>${fileLink(file)}</li>`)}</ul>`;
}

function fileLink(file) {
  const label = `${file.name ?? "file"}${typeof file.size === "number" ? ` (${bytes(file.size)})` : ""}`;
  if (!file.url || !URL.canParse(file.url, document.baseURI)) return label;
  const url = new URL(file.url, document.baseURI);
  if (url.protocol !== "http:" && url.protocol !== "https:") return label;
  return html`<a href=${url.href} rel="noopener noreferrer" target="_blank">${label}</a>`;
}

/** Render again after the thread changed, at most once per frame. */
export function useThread(thread) {
  const [, draw] = useState(0);
  useEffect(() => {
    let waiting = null;
    const soon = () => {
      waiting ??= requestAnimationFrame(() => {
        waiting = null;
        draw(thread.version);
      });
    };
    const end = thread.listen(soon);
    soon();
    return () => {
      end();
      cancelAnimationFrame(waiting);
    };
  }, [thread]);
}

/** The result of `ask`, called every `every` milliseconds while the page is visible (0: once). */
export function usePolled(ask, every, keys = []) {
  const [answer, setAnswer] = useState({ value: null, problem: null });
  const round = useRef(0);
  const refresh = useCallback(async () => {
    const mine = ++round.current;
    const next = await ask().then((value) => ({ value, problem: null }), (problem) => ({ problem }));
    if (mine === round.current) setAnswer((known) => ({ ...known, ...next }));
  }, keys);
  useEffect(() => {
    setAnswer({ value: null, problem: null });
    refresh();
    const timer = every > 0 ? setInterval(() => document.hidden || refresh(), every) : null;
    return () => {
      round.current += 1;
      clearInterval(timer);
    };
  }, [refresh, every]);
  return { ...answer, refresh };
}

/** A paged list that grows on request: {items, more, busy, problem, refresh}; `more` is null on the last page. */
export function usePaged(path) {
  return useGrowing(path, 0);
}

const PAGE = 50;
const FRESH = 100;

/**
 * A paged list whose first page is read again every `every` milliseconds (0: never): items that moved up are
 * shown once, at their new place. `keys` that change read it again.
 */
export function useGrowing(path, every, ...keys) {
  const [read, setRead] = useState({ path: null, items: null, next: null });
  const [problem, setProblem] = useState(null);
  const round = useRef(0);
  const page = (query) => call("GET", `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams(query)}`);
  const refresh = async () => {
    const mine = ++round.current;
    const [answer, failed] = await page({ limit: FRESH }).then((found) => [found, null], (error) => [null, error]);
    if (mine !== round.current) return; // a later question overtook this one
    setProblem(failed);
    if (failed === null) setRead((known) => (known.path === path ? renewed(known, answer.items, answer.next) : { path, items: answer.items, next: answer.next ?? null }));
  };
  const [more, further] = useAction(async () => {
    const { items, next } = await page({ limit: PAGE, cursor: read.next });
    setRead((known) => ({ path, items: joined(known.items, items), next: next ?? null }));
  });
  useEffect(() => {
    refresh();
    const timer = every > 0 ? setInterval(() => document.hidden || refresh(), every) : null;
    return () => {
      round.current += 1;
      clearInterval(timer);
    };
  }, [path, every, ...keys]);
  const current = read.path === path;
  return {
    items: current ? read.items : null, busy: further.busy, problem: problem ?? further.problem, refresh,
    more: current && read.next ? more : null,
  };
}

/** The list after its first page was read again; without further pages the new one is the whole list. */
function renewed(known, items, next) {
  const end = items.at(-1);
  const last = known.items.findIndex((item) => end !== undefined && idOf(item) === idOf(end));
  if (!next || last === -1 || known.items.length <= items.length) return { ...known, items, next: next ?? null };
  return { ...known, items: joined(items, known.items.slice(last + 1)) };
}

function idOf(item) {
  return item.id ?? item.resultId;
}

function joined(before, after) {
  const known = new Set(before.map(idOf));
  return [...before, ...after.filter((item) => !known.has(idOf(item)))];
}

/** Run an action with its progress and its problem: [run, {busy, problem}]; while it runs it is not begun again. */
export function useAction(act) {
  const [state, setState] = useState({ busy: false, problem: null });
  const isRunning = useRef(false);
  const run = async (...given) => {
    if (isRunning.current) return undefined;
    isRunning.current = true;
    setState({ busy: true, problem: null });
    try {
      const answer = await act(...given);
      setState({ busy: false, problem: null });
      return answer;
    } catch (problem) {
      setState({ busy: false, problem });
      return undefined;
    } finally {
      isRunning.current = false;
    }
  };
  return [run, state];
}
