// The items of a conversation as they are drawn: turns as units, unsent messages, and the end of the list.

import { shownItems, takenBack, versionsOf } from "../core/branches.js";
import { html, Trouble } from "../parts/parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { Turn } from "./turn.js";

const PAGE = 200;
const NEAR = 80;

export function Stream({ items: all, branches, thread, letters, live }) {
  const [box, sticks, stick, scrolled] = useSticky(letters.length);
  const [limit, setLimit] = useState(PAGE);
  const [chosen, setChosen] = useState(new Map());
  const versions = versionsOf(branches);
  const items = branches.length === 0 ? all : shownItems(all, branches, chosen);
  const taken = takenBack(branches);
  const mayRun = thread.timeline.open().length === 0;
  const choose = (turn, newest = false) => {
    const next = new Map(chosen);
    const root = versions.find((one) => one.includes(turn))?.[0] ?? turn;
    if (newest) next.delete(root);
    else next.set(root, turn);
    setChosen(next);
  };
  const shown = items.slice(-limit);
  return html`<div class="stream" ref=${box} onScroll=${scrolled} role="log" aria-live="off" aria-label="Conversation" tabIndex="0"><div class="items">
      <${Trouble} problem=${thread.problem} />
      ${thread.notice && html`<p class="note">${thread.notice}</p>`}
      ${shown.length < items.length && html`<button type="button" class="fold" onClick=${() => setLimit(limit + PAGE)}>Show earlier (${items.length - shown.length} more)</button>`}
      ${items.length === 0 && thread.place.caughtUp && letters.length === 0 && html`<p class="empty">Nothing was said here yet.</p>`}
      ${turnsOf(shown).map((group) => html`<${Turn} group=${group} turn=${thread.timeline.turns.get(group.turn)} key=${group.key}
        versions=${versions.find((one) => one.includes(group.turn))} choose=${choose} mayRun=${mayRun} isTakenBack=${taken.has(group.turn)} caughtUp=${thread.place.caughtUp} />`)}
      <${Letters} letters=${letters} outbox=${live.outbox} />
    </div></div>
    ${!sticks && html`<button type="button" class="down" onClick=${stick}>Newest ↓</button>`}`;
}

/** Neighbouring items of one turn belong together: {key, turn, items}. */
export function turnsOf(items) {
  const groups = [];
  for (const item of items) {
    const last = groups.at(-1);
    if (item.turn !== undefined && last?.turn === item.turn) last.items.push(item);
    else groups.push({ key: item.key, turn: item.turn, items: [item] });
  }
  return groups;
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
    if (!box.current) return; // the event of a box that has just gone
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

export function Letters({ letters, outbox }) {
  return letters.map((letter) => html`<article class="message mine letter" key=${letter.id} data-kind="letter" data-state=${letter.state}>
    <header><span class="who">You</span> <span class="quiet">${LETTER_WORDS[letter.state]}</span></header>
    <div class="text"><p>${letter.text.slice(0, 2000)}</p></div>
    ${letter.attachments?.length > 0 && html`<p class="quiet">${letter.attachments.map(({ name }) => name).join(", ")}</p>`}
    ${letter.state === "refused" && html`<div class="trouble" role="alert"><p>${letter.problem}</p>
      <p class="row"><button type="button" onClick=${() => outbox.retry(letter.id)}>Send again</button>
      <button type="button" onClick=${() => outbox.discard(letter.id)}>Discard</button></p></div>`}
  </article>`);
}

const LETTER_WORDS = { sending: "sending…", accepted: "accepted", refused: "not accepted" };

