// Streams: the stored events of a conversation, with their cursors.

import { call } from "../core/api.js";
import { nameOf } from "../conversation/names.js";
import { html, Moment, Output, Trouble, useAction, useGrowing } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";

const PAGE = 100;

export function View({ id }) {
  return id ? html`<${Events} id=${id} key=${id} />` : html`<${AllStreams} />`;
}

function AllStreams() {
  const { items: value, more, busy, problem, refresh } = useGrowing("conversations", 0);
  return html`<section class="view">
    <h1>Streams</h1>
    <p class="lead">Every conversation has a stream of events. WebSocket, SSE and this page read the same one.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<p class="empty">No conversations yet.</p>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((talk) => html`<li key=${talk.id}>
      <a class="rowlink two" href=${`#/streams/${talk.id}`}><span class="clip">${nameOf(talk)}</span>
      <span class="quiet"><${Moment} time=${talk.created_at} /></span></a></li>`)}</ul>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
  </section>`;
}

/** The stored events from the first on, a page at a time. */
function Events({ id }) {
  const [read, setRead] = useState({ items: [], page: null });
  const [more, { busy, problem }] = useAction(async () => {
    const after = read.items.at(-1)?.seq ?? 0;
    const page = await call("GET", `conversations/${id}/events?after=${after}&limit=${PAGE}`);
    setRead({ items: [...read.items, ...page.items], page });
  });
  useEffect(() => {
    more();
  }, []);
  const { items, page } = read;
  return html`<section class="view">
    <p><a href="#/streams">← All streams</a></p>
    <h1>Stream</h1>
    <p><a href=${`#/inbox/${id}`}>Open the conversation</a></p>
    ${page && html`<dl class="facts">
      <dt>Epoch</dt><dd><code>${page.epoch}</code></dd>
      <dt>Kept</dt><dd>${page.first_seq} to ${page.last_seq}</dd>
    </dl>`}
    <ol class="rows events">${items.map((event) => html`<${EventRow} event=${event} key=${event.seq} />`)}</ol>
    <${Trouble} problem=${problem} />
    <p class="row"><button type="button" aria-disabled=${busy} onClick=${more}>Read on</button></p>
  </section>`;
}

function EventRow({ event }) {
  const [open, setOpen] = useState(false);
  return html`<li>
    <button type="button" class="event" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <code>${event.seq}</code> <span class="quiet">${event.n ? `n ${event.n}` : "passing"}</span>
      <span class="clip">${event.type}</span> <span class="quiet"><${Moment} time=${event.time} /></span>
    </button>
    ${open && html`<${Output} text=${JSON.stringify(event, null, 2)} label="Event" />`}
  </li>`;
}
