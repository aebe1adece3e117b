// What stands around the items of a conversation: what is at work, what is missing, and what is read aloud.

import { call, session } from "../core/api.js";
import { html, Trouble, useAction } from "../parts/parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";

/** A warning about events that are missing, by the stream's own count. */
export function Holes({ thread, live }) {
  const { holes } = thread.place;
  if (holes.length === 0) return null;
  const ranges = holes.map(({ from, to }) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  const one = holes.length === 1 && holes[0].from === holes[0].to;
  return html`<div class="trouble hole" role="alert">
    <p>${one ? "Event" : "Events"} ${ranges} of this conversation did not arrive. Messages may be missing here.</p>
    <button type="button" onClick=${() => live.reread(thread)}>Read it again from the start</button>
  </div>`;
}

/** Announces new answers to screen readers, once each and not when they are replayed. */
export function Announcer({ items, live }) {
  const told = useRef(null);
  const [words, setWords] = useState("");
  const last = items.findLast(isWorthTelling);
  useEffect(() => {
    if (live && told.current !== null && last && last.key !== told.current) setWords(tell(last));
    if (live) told.current = last?.key ?? "";
  }, [live, last?.key]);
  return html`<p class="unseen" role="status" aria-live="polite" data-announcer>${words}</p>`;
}

function isWorthTelling(item) {
  return (item.kind === "message" && item.role !== "user") || item.kind === "approval" || item.kind === "note" || item.kind === "retry";
}

function tell(item) {
  if (item.kind === "approval") return `Approval needed: ${item.command}`.slice(0, 300);
  if (item.kind === "retry") return `Waiting for another attempt: ${item.error}`.slice(0, 300);
  return item.text.slice(0, 300);
}

export function Working({ open }) {
  const turn = open[0];
  const [cancel, { busy, problem }] = useAction(() => call("POST", `turns/${turn.turn}/cancel`));
  if (!turn) return html`<div class="working" />`;
  const rest = open.length > 1 ? ` · ${open.length - 1} more waiting` : "";
  return html`<div class="working">
    <span><span class="pulse" aria-hidden="true" /> ${WORKING_WORDS[turn.state]}${rest}</span>
    ${session.may("chat") && html`<button type="button" aria-disabled=${busy} onClick=${cancel}>Cancel</button>`}
    <${Trouble} problem=${problem} />
  </div>`;
}

const WORKING_WORDS = { queued: "Queued", running: "Working", waiting: "Waiting for an approval", retrying: "Waiting for another attempt" };
