// The inbox: all conversations, last active first, with search and filters; beside them the one that is open.

import { session } from "../core/api.js";
import { isUnread } from "../core/choices.js";
import { addressOf, replaceAddress } from "../core/places.js";
import { PlatformMark } from "../parts/icons.js";
import { plainLine } from "../parts/markdown.js";
import { Badge, Empty, html, Moment, Trouble, useGrowing } from "../parts/parts.js";
import { NewConversation, Conversation } from "../conversation/conversation.js";
import { nameOf, placeOf } from "../conversation/names.js";
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { Filters } from "./filters.js";

const LIST_EVERY = 5000;
const TYPING_PAUSE = 250;
const FILTERS = ["q", "state", "kind", "agent"];

export function View({ id, query, live }) {
  const isNew = id === "new";
  return html`<section class=${`inbox ${id ? "open" : ""}`}>
    <${Conversations} current=${id} query=${isNew ? new URLSearchParams() : query} />
    <div class="talk">
      ${isNew && html`<${NewConversation} live=${live} wanted=${query.get("agent")} key=${query.get("agent")} />`}
      ${id && !isNew && html`<${Conversation} id=${id} live=${live} key=${id} />`}
      ${!id && html`<${Empty} icon="inbox" title="No conversation is open">Choose one from the list${session.may("chat") && html`, or <a href="#/inbox/new">begin a new one</a>`}.</${Empty}>`}
    </div>
  </section>`;
}

function Conversations({ current, query }) {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const isFiltered = FILTERS.some((name) => wanted[name]);
  const given = Object.entries(wanted).filter(([, value]) => value);
  const path = `conversations?${new URLSearchParams([["preview", "true"], ...given])}`;
  const { items, more, busy, problem, refresh } = useGrowing(path, LIST_EVERY, current);
  const choose = (changes) => replaceAddress(addressOf("inbox", current, { ...wanted, ...changes }));
  return html`<nav class="conversations" aria-label="Conversations">
    <header><h1>Inbox</h1></header>
    <${Search} text=${wanted.q} onSearch=${(q) => choose({ q })} />
    <${Filters} wanted=${wanted} choose=${choose} />
    <${Trouble} problem=${problem} retry=${refresh} />
    ${items?.length === 0 && html`<p class="empty">${isFiltered ? "Nothing matches." : "No conversations yet. Begin one with New conversation, or connect a channel."}</p>`}
    <ul>${(items ?? []).map((talk) => html`<${Row} talk=${talk} current=${current} wanted=${wanted} key=${talk.id} />`)}</ul>
    ${more && html`<${More} more=${more} busy=${busy} />`}
  </nav>`;
}

function Search({ text, onSearch }) {
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    if (typed === text) return undefined;
    const timer = setTimeout(() => onSearch(typed.trim()), TYPING_PAUSE);
    return () => clearTimeout(timer);
  }, [typed]);
  return html`<label class="search"><span class="unseen">Search conversations</span>
    <input type="search" value=${typed} maxLength="200" placeholder="Search" onInput=${(event) => setTyped(event.target.value)} /></label>`;
}

function Row({ talk, current, wanted }) {
  const unread = talk.id !== current && isUnread(talk);
  const { last, people = [], people_names: called = people, states = [] } = talk.preview ?? {};
  const shown = people.map((id, place) => ({ id, name: called[place] ?? id })).filter(({ id }) => !id.startsWith("key_")).slice(0, 3);
  const ids = shown.map(({ id }) => id).join(", ");
  const others = shown.filter(({ name }) => name !== talk.address?.room_name).map(({ name }) => name).join(", ");
  const where = [placeOf(talk), others].filter(Boolean).join(" · ");
  return html`<li>
    <a class=${unread ? "unread" : ""} href=${addressOf("inbox", talk.id, wanted)} aria-current=${talk.id === current ? "page" : undefined} data-conversation=${talk.id}>
      <${PlatformMark} kind=${talk.kind} />
      <span class="names"><span class="clip name">${nameOf(talk)}</span>
        ${where && html`<span class="clip quiet" title=${ids || undefined}>${where}</span>`}
        ${last && html`<span class="clip quiet last">${last.role === "user" ? last.text : `↩ ${plainLine(last.text)}`}</span>`}</span>
      <span class="marks"><${Moment} time=${talk.active_at} /> <${State} states=${states} />
        ${unread && html`<span class="dot"><span class="unseen">unread</span></span>`}</span>
    </a></li>`;
}

const STATE_WORDS = [["waiting", "waiting"], ["human", "with a person"], ["running", "running"], ["failed", "failed"]];

function State({ states }) {
  const [, words] = STATE_WORDS.find(([name]) => states.includes(name)) ?? [];
  return words ? html`<${Badge} state=${words} />` : null;
}

/** Fetches the next page when the end of the list comes into view; also a button for those who do not scroll. */
function More({ more, busy }) {
  const end = useRef(null);
  useEffect(() => {
    const seen = new IntersectionObserver(([entry]) => entry.isIntersecting && !busy && more());
    seen.observe(end.current);
    return () => seen.disconnect();
  }, [more, busy]);
  return html`<p class="row" ref=${end}><button type="button" aria-disabled=${busy} onClick=${more}>Show more</button></p>`;
}
