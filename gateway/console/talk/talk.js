// Conversations: the list, one with its live stream, and the composer.

import { call, list, word } from "./api.js";
import { Item } from "./cards.js";
import { Badge, html, Moment, Trouble, useAction, usePolled, useThread } from "./parts.js";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";

const LIST_EVERY = 10_000;
const PAGE = 200;
const NEAR = 80;

export function Chat({ id, shared }) {
  const creating = id === null || id === "new";
  return html`<section class=${`chat ${id ? "open" : ""}`}>
    <${Conversations} current=${id} />
    <div class="talk">
      ${creating && html`<${NewTalk} shared=${shared} />`}
      ${!creating && html`<${Talk} id=${id} shared=${shared} key=${id} />`}
    </div>
  </section>`;
}

function Conversations({ current }) {
  const [pages, setPages] = useState(1);
  const { value, problem, refresh } = usePolled(() => conversationsWithQuestions(pages), LIST_EVERY, [current, pages]);
  return html`<nav class="conversations" aria-label="Conversations">
    <header><h1>Conversations</h1> <a class="button primary" href="#/chat/new">New</a></header>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<p class="empty">None yet.</p>`}
    <ul>${(value ?? []).map((talk) => html`<li key=${talk.id}>
      <a href=${`#/chat/${talk.id}`} aria-current=${talk.id === current ? "page" : undefined}>
        <span class="names"><span class="clip">${nameOf(talk)}</span>
          ${placeOf(talk) && html`<span class="clip quiet">${placeOf(talk)}</span>`}</span>
        <span class="quiet">${talk.asks ? html`<${Badge} state="waiting" />` : html`<${Moment} time=${talk.active_at} />`}</span>
      </a></li>`)}</ul>
    ${value?.more && html`<button type="button" onClick=${() => setPages(pages + 1)}>Show more</button>`}
  </nav>`;
}

async function conversationsWithQuestions(pages) {
  const [talks, approvals] = await Promise.all([list("conversations", pages), list("approvals?state=pending")]);
  const asking = new Set(approvals.map(({ conversation }) => conversation));
  const marked = talks.map((talk) => ({ ...talk, asks: asking.has(talk.id) }));
  return Object.assign(marked, { more: talks.more });
}

/** The title of a conversation: a person's, else the start of its first message. */
export function nameOf(talk) {
  return talk.title ?? talk.name ?? (placeOf(talk) || talk.id);
}

/** Where in a chat a conversation is; empty for one without a chat. */
function placeOf(talk) {
  const { channel_name: channel, room, thread } = talk.address ?? {};
  return [channel, room, thread].filter(Boolean).join(" · ");
}

function NewTalk({ shared }) {
  const [name, setName] = useState(() => `console-${word(6)}`);
  const [agent, setAgent] = useState("");
  const { value: agents, problem } = usePolled(() => list("accounts/me/agents"), 0);
  const chosen = agent || (agents?.find((one) => one.name === "default") ?? agents?.[0])?.name;
  const letters = shared.outbox.of(name);
  return html`<div class="stream"><div class="view">
      <p class="back"><a href="#/chat">← Conversations</a></p>
      <h1>New conversation</h1>
      <${Trouble} problem=${problem?.status === 403 ? null : problem} />
      <div class="stack">
        <label>Name <input value=${name} maxLength="100" onInput=${(event) => setName(event.target.value)} /></label>
        ${agents?.length > 1 && html`<label>Agent <select value=${chosen} onChange=${(event) => setAgent(event.target.value)}>
          ${agents.map((one) => html`<option value=${one.name} key=${one.id}>${one.name}</option>`)}
        </select></label>`}
        <p class="quiet">The shell agent runs the text after an exclamation mark: <code>!echo hi</code> runs now, <code>!&sleep 5; echo done</code> in the background.</p>
      </div>
      <${Letters} letters=${letters} outbox=${shared.outbox} />
    </div></div>
    <${Composer} onSend=${(text) => shared.outbox.add({ conversation: name.trim() || `console-${word(6)}`, text, agent: chosen, isNew: true })} />`;
}

function Talk({ id, shared }) {
  const thread = shared.thread(id);
  useThread(thread);
  useEffect(() => shared.follow(thread), [thread]);
  const items = thread.timeline.list();
  const open = thread.timeline.open();
  return html`<${Title} id=${id} />
    <${Holes} thread=${thread} shared=${shared} />
    <${Stream} items=${items} thread=${thread} letters=${shared.outbox.of(id)} shared=${shared} />
    <${Announcer} items=${items} live=${thread.place.caughtUp} />
    <${Working} open=${open} />
    <${Composer} onSend=${(text) => shared.outbox.add({ conversation: id, text })} />`;
}

/** The title of the shown conversation, and the form that changes it. */
function Title({ id }) {
  const { value: talk, refresh } = usePolled(() => call("GET", `conversations/${encodeURIComponent(id)}`), LIST_EVERY, [id]);
  const [wanted, setWanted] = useState(null);
  const [rename, { busy, problem }] = useAction(async (title) => {
    await call("PATCH", `conversations/${encodeURIComponent(id)}`, { body: { title: title.trim() || null } });
    setWanted(null);
    await refresh();
  });
  const submitted = (event) => {
    event.preventDefault();
    rename(wanted);
  };
  if (talk === null) return null;
  if (wanted === null) {
    return html`<header class="title"><h1 class="clip">${nameOf(talk)}</h1>
      <button type="button" onClick=${() => setWanted(talk.title ?? "")}>Rename</button></header>`;
  }
  return html`<form class="title" onSubmit=${submitted}>
    <label class="unseen" for="title">Title</label>
    <input id="title" value=${wanted} maxLength="200" placeholder="The start of the first message" autoFocus onInput=${(event) => setWanted(event.target.value)} />
    <button class="primary" disabled=${busy}>Save</button>
    <button type="button" onClick=${() => setWanted(null)}>Cancel</button>
    <${Trouble} problem=${problem} />
  </form>`;
}

/** A warning about events that are missing, by the stream's own count. */
function Holes({ thread, shared }) {
  const { holes } = thread.place;
  if (holes.length === 0) return null;
  const ranges = holes.map(({ from, to }) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  const one = holes.length === 1 && holes[0].from === holes[0].to;
  return html`<div class="trouble hole" role="alert">
    <p>${one ? "Event" : "Events"} ${ranges} of this conversation did not arrive. Messages may be missing here.</p>
    <button type="button" onClick=${() => shared.reread(thread)}>Read it again from the start</button>
  </div>`;
}

function Stream({ items, thread, letters, shared }) {
  const [box, sticks, stick, scrolled] = useSticky(letters.length);
  const [limit, setLimit] = useState(PAGE);
  const shown = items.slice(-limit);
  return html`<div class="stream" ref=${box} onScroll=${scrolled} role="log" aria-live="off" aria-label="Conversation" tabIndex="0"><div class="items">
      <p class="back"><a href="#/chat">← Conversations</a></p>
      <${Trouble} problem=${thread.problem} />
      ${thread.notice && html`<p class="note">${thread.notice}</p>`}
      ${shown.length < items.length && html`<button type="button" class="fold" onClick=${() => setLimit(limit + PAGE)}>Show earlier (${items.length - shown.length} more)</button>`}
      ${items.length === 0 && thread.place.caughtUp && letters.length === 0 && html`<p class="empty">Nothing was said here yet.</p>`}
      ${shown.map((item) => html`<${Item} item=${item} key=${item.key} />`)}
      <${Letters} letters=${letters} outbox=${shared.outbox} />
    </div></div>
    ${!sticks && html`<button type="button" class="down" onClick=${stick}>Newest ↓</button>`}`;
}

/** Keeps a box at its end while it grows, until the reader scrolls up: [box, sticks, stick, onScroll]. */
function useSticky(sent) {
  const box = useRef(null);
  const top = useRef(0);
  const wanted = useRef(true);
  const [sticks, setSticks] = useState(true);
  const want = (value) => {
    wanted.current = value;
    setSticks(value);
  };
  const fall = () => {
    if (wanted.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  const stick = () => {
    want(true);
    fall();
  };
  const scrolled = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    if (scrollHeight - scrollTop - clientHeight < NEAR) want(true);
    else if (scrollTop < top.current) want(false);
    top.current = scrollTop;
  };
  useEffect(() => {
    const growth = new ResizeObserver(fall);
    growth.observe(box.current);
    growth.observe(box.current.firstElementChild);
    return () => growth.disconnect();
  }, []);
  useEffect(() => {
    if (sent > 0) stick();
  }, [sent]);
  return [box, sticks, stick, scrolled];
}

function Letters({ letters, outbox }) {
  return letters.map((letter) => html`<article class="message mine letter" key=${letter.id} data-kind="letter" data-state=${letter.state}>
    <header><span class="who">You</span> <span class="quiet">${LETTER_WORDS[letter.state]}</span></header>
    <div class="text"><p>${letter.text.slice(0, 2000)}</p></div>
    ${letter.state === "refused" && html`<div class="trouble" role="alert"><p>${letter.problem}</p>
      <p class="row"><button type="button" onClick=${() => outbox.retry(letter.id)}>Send again</button>
      <button type="button" onClick=${() => outbox.discard(letter.id)}>Discard</button></p></div>`}
  </article>`);
}

const LETTER_WORDS = { sending: "sending…", accepted: "accepted", refused: "not accepted" };

/** Announces new answers to screen readers, once each and not when they are replayed. */
function Announcer({ items, live }) {
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

function Working({ open }) {
  const turn = open[0];
  const [cancel, { busy, problem }] = useAction(() => call("POST", `turns/${turn.turn}/cancel`));
  if (!turn) return html`<div class="working" />`;
  const rest = open.length > 1 ? ` · ${open.length - 1} more waiting` : "";
  return html`<div class="working">
    <span><span class="pulse" aria-hidden="true" /> ${WORKING_WORDS[turn.state]}${rest}</span>
    <button type="button" disabled=${busy} onClick=${cancel}>Cancel</button>
    <${Trouble} problem=${problem} />
  </div>`;
}

const WORKING_WORDS = { queued: "Queued", running: "Working", waiting: "Waiting for an approval", retrying: "Waiting for another attempt" };

function Composer({ onSend }) {
  const field = useRef(null);
  const [text, setText] = useState("");
  useEffect(() => {
    // On touch screens the keyboard would cover the page, so the field gets no focus by itself.
    if (matchMedia("(hover: hover)").matches) field.current.focus({ preventScroll: true });
  }, []);
  const send = () => {
    if (text.trim() === "") return;
    onSend(text);
    setText("");
  };
  const pressed = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const submitted = (event) => {
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${submitted}>
    <label class="unseen" for="say">Message</label>
    <textarea id="say" ref=${field} rows=${Math.min(8, text.split("\n", 8).length)} value=${text} placeholder="Message"
      aria-describedby="say-hint" onInput=${(event) => setText(event.target.value)} onKeyDown=${pressed} />
    <button class="primary" disabled=${text.trim() === ""}>Send</button>
    <p id="say-hint" class="unseen">Enter sends the message, Shift+Enter starts a new line.</p>
  </form>`;
}
