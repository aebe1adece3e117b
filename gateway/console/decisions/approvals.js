// Approvals: every tool call and question that waits for a person, and what was decided before.

import { call, list } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { CallText } from "../parts/call_text.js";
import { focusPage } from "../parts/forms.js";
import { Badge, Empty, html, Moment, Tabs, Trouble, usePaged, usePolled } from "../parts/parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { Answer, Decide } from "./decide.js";

const EVERY = 3000;
const STATES = { "": "Waiting", approved: "Approved", denied: "Denied", answered: "Answered", expired: "Expired" };

export function View({ id, query, live }) {
  const state = query.get("state") ?? "";
  return html`<section class="view narrow">
    <h1>Approvals</h1>
    <p class="lead">What agents may not do, or cannot know, without a person.</p>
    ${id
      ? html`<p><a href="#/approvals">← All approvals</a></p><${One} id=${id} live=${live} key=${id} />`
      : html`<${Tabs} label="State" chosen=${state} options=${STATES} address=${(name) => addressOf("approvals", null, { state: name })} />
        ${state === "" ? html`<${Waiting} live=${live} />` : html`<${Settled} state=${state} key=${state} />`}`}
    <${NotifyChoice} />
  </section>`;
}

function Waiting({ live }) {
  const count = useRef(0);
  const { value, problem, refresh } = usePolled(() => list("approvals?state=pending"), EVERY);
  const [known, setKnown] = useState([]);
  useEffect(() => {
    if (value !== null) setKnown(value);
  }, [value]);
  useEffect(() => {
    if (known.length < count.current) focusPage(); // the item that had the focus may be gone
    count.current = known.length;
  }, [known.length]);
  const done = () => {
    live.askApprovals();
    refresh();
  };
  return html`<${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<${Empty} icon="check" title="Nothing waits for you">Calls that an agent may not make by itself appear here, and questions that it asks.</${Empty}>`}
    <div class="cards" aria-live="polite">${known.map((item) => html`<${ApprovalItem} item=${item} key=${item.id} onDone=${done} />`)}</div>`;
}

function Settled({ state }) {
  const { items, problem, more, busy } = usePaged(`approvals?state=${state}`);
  return html`<${Trouble} problem=${problem} />
    ${items?.length === 0 && html`<p class="empty">None.</p>`}
    <div class="cards">${items?.map((item) => html`<${ApprovalItem} item=${item} key=${item.id} />`)}</div>
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}`;
}

function One({ id, live }) {
  const { value, problem, refresh } = usePolled(() => call("GET", `approvals/${encodeURIComponent(id)}`), EVERY, [id]);
  const done = () => {
    live.askApprovals();
    refresh();
  };
  return html`<${Trouble} problem=${problem} retry=${refresh} />${value && html`<${ApprovalItem} item=${value} onDone=${done} />`}`;
}

function ApprovalItem({ item, onDone }) {
  const waits = item.state === "pending";
  const asks = item.kind === "question";
  return html`<article class=${`card approval ${waits ? "asks" : ""}`} data-approval=${item.id} data-state=${item.state} aria-label=${asks ? "Question" : `Call of ${item.tool}`}>
    <header><span class="name">${asks ? "Question" : item.tool}</span> <${Badge} state=${waits ? "waiting" : item.state} />
      <span class="quiet"><${Moment} time=${item.created_at} /></span>
      <a class="end" href=${addressOf("inbox", item.conversation)}>Open the conversation</a></header>
    ${asks ? html`<p class="question">${item.question}</p>` : html`<${CallText} text=${item.question} label="The whole call" />`}
    ${waits ? answerOf(item, onDone) : html`<footer>${decidedBy(item)}</footer>`}
  </article>`;
}

function answerOf(item, onDone) {
  if (item.kind !== "question") return html`<${Decide} approval=${item.id} onDone=${onDone} />`;
  return html`<${Answer} approval=${item.id} choices=${item.choices} form=${item.form} onDone=${onDone} />`;
}

function decidedBy(item) {
  const who = item.decided_name ?? item.decided_by;
  const said = item.answer ?? item.comment;
  return html`${[who && `by ${who}`, said && `“${said}”`].filter(Boolean).join(" · ")} <${Moment} time=${item.decided_at} />`;
}

/** Browsers ask people whether a page may notify them, and only after a click. */
function NotifyChoice() {
  const [permission, setPermission] = useState(globalThis.Notification?.permission ?? "unsupported");
  if (permission !== "default") return null;
  const ask = async () => setPermission(await Notification.requestPermission());
  return html`<p class="row"><button type="button" onClick=${ask}>Notify me of new approvals</button></p>`;
}
