// The items of a conversation: messages, tool calls, approvals, jobs and notes.

import { call, session } from "../core/api.js";
import { render as renderMarkdown } from "../parts/markdown.js";
import { Answer, Decide } from "../decisions/decide.js";
import { CallText } from "../parts/call_text.js";
import { Countdown } from "../shell/connection.js";
import { Component } from "../vendor/preact.mjs";
import { useEffect, useState } from "../vendor/hooks.mjs";
import { Badge, Files, html, Moment, Output, span, Trouble, useAction } from "../parts/parts.js";
import { JobLog } from "../work/jobs.js";

const LONG = 6000;

/** One item of a timeline; rendered again only when the item was replaced. */
export class Item extends Component {
  shouldComponentUpdate(next) {
    return next.item !== this.props.item;
  }

  render({ item }) {
    const Card = CARDS[item.kind];
    return Card ? html`<${Card} item=${item} />` : null;
  }
}

function MessageCard({ item }) {
  const mine = item.role === "user";
  return html`<article class=${`message ${mine ? "mine" : "theirs"}`} data-role=${item.role} data-kind="message">
    <header><span class="who" title=${item.author}>${mine ? askerOf(item) : speakerOf(item)}</span> <${Moment} time=${item.time} /></header>
    <${Text} text=${item.text} plain=${mine} />
    <${Reactions} reactions=${item.reactions} />
    <${Files} files=${item.files} />
  </article>`;
}

/** What the agent put at a message of the chat. */
function Reactions({ reactions = [] }) {
  if (reactions.length === 0) return null;
  return html`<ul class="reactions" aria-label="Reactions">${reactions.map(({ emoji, name }) => html`<li key=${emoji} title=${name} data-reaction=${emoji}>${emoji}<span class="unseen"> from the agent</span></li>`)}</ul>`;
}

/** The name of a message's author; authors over the API are only known by the id of a key. */
function askerOf({ author, authorName }) {
  if (!author || author === session.author()) return "You";
  return author.startsWith("key_") ? "API key" : (authorName ?? author);
}

function speakerOf({ role, author }) {
  return role === "operator" ? `${author || "Operator"} (a person)` : "Dovecote";
}

/** A text that is folded when it is long. */
function Text({ text, plain }) {
  const [whole, setWhole] = useState(false);
  const shown = whole || text.length <= LONG ? text : text.slice(0, LONG);
  return html`<div class="text">
    ${plain ? html`<p>${shown}</p>` : renderMarkdown(shown)}
    ${shown.length < text.length && html`<button type="button" class="fold" onClick=${() => setWhole(true)}>
      Show all ${text.length.toLocaleString()} characters
    </button>`}
  </div>`;
}

function DraftCard({ item }) {
  return html`<article class="message theirs draft" data-kind="draft">
    <header><span class="who">Dovecote</span> <span class="quiet">is writing…</span></header>
    <div class="text">${renderMarkdown(item.text)}</div>
  </article>`;
}

function CallArguments({ args }) {
  if (Object.keys(args).length === 0) return null;
  const isCommand = typeof args.command === "string";
  return html`<pre class=${`command ${isCommand ? "shell" : ""}`} tabIndex="0" aria-label="Command">
    ${isCommand ? args.command : JSON.stringify(args, null, 2)}</pre>`;
}

function ToolCard({ item }) {
  const state = toolState(item);
  return html`<section role="group" class="card tool" data-kind="tool" data-state=${item.state} aria-label=${`Tool ${item.name}`}>
    <header><span class="name">${item.name}</span> <${Badge} state=${state} /> ${item.state === "running" && html`<${Elapsed} since=${item.time} />`}</header>
    <${CallArguments} args=${item.args ?? {}} />
    ${item.output && !item.job && html`<${Output} text=${item.output} label="Output" />`}
    ${item.state === "done" && html`<${ToolEnd} item=${item} />`}
    <${Files} files=${item.files} />
  </section>`;
}

function toolState(item) {
  if (item.state === "running") return "running";
  if (item.state === "unknown") return "ended with the turn";
  if (item.timedOut) return "timed out";
  return item.ok ? "done" : "failed";
}

function ToolEnd({ item }) {
  const facts = [];
  if (typeof item.exitCode === "number") facts.push(`exit code ${item.exitCode}`);
  if (typeof item.duration === "number") facts.push(span(item.duration));
  if (item.timedOut) facts.push("timed out");
  if (item.truncated) facts.push("output cut");
  if (item.job) facts.push("continues in the background");
  else if (!item.output) facts.push("no output");
  return html`<footer>${facts.join(" · ")} ${item.job && html`<a href=${`#/jobs/${item.job}`}>Open the job</a>`}</footer>`;
}

function Elapsed({ since }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const passed = now - Date.parse(since);
  const seconds = Math.floor(passed / 1000);
  return seconds > 0 ? html`<span class="quiet">${seconds < 60 ? `${seconds} s` : span(seconds * 1000)}</span>` : null;
}

function ApprovalCard({ item }) {
  const waiting = item.state === "pending" || item.state === "waiting";
  if (item.asks) return html`<${QuestionCard} item=${item} waiting=${waiting} />`;
  return html`<section role="group" class=${`card approval ${waiting ? "asks" : ""}`} data-kind="approval" data-state=${item.state} aria-label="Approval">
    <header><span class="name">${waiting ? "May this be run?" : `Approval for ${item.tool}`}</span>
      <${Badge} state=${waiting ? "waiting" : item.state} /></header>
    <${CallText} text=${item.question || item.command || JSON.stringify(item.args ?? {}, null, 2)} label="The exact call" />
    ${waiting ? html`<${Decide} approval=${item.approval} />` : html`<footer>${decidedBy(item)}</footer>`}
  </section>`;
}

function QuestionCard({ item, waiting }) {
  return html`<section role="group" class=${`card approval ${waiting ? "asks" : ""}`} data-kind="question" data-state=${item.state} aria-label="Question">
    <header><span class="name">Question</span> <${Badge} state=${waiting ? "waiting" : item.state} /></header>
    <p>${item.question}</p>
    ${waiting ? html`<${Answer} approval=${item.approval} choices=${item.choices} form=${item.form} />` : html`<footer>${decidedBy(item)}</footer>`}
  </section>`;
}

function decidedBy(item) {
  return [item.by && `by ${item.by}`, item.comment && `“${item.comment}”`].filter(Boolean).join(" · ") || item.state;
}

function JobCard({ item }) {
  const running = item.state === "running";
  const [open, setOpen] = useState(true);
  return html`<section role="group" class="card job" data-kind="job" data-state=${item.state} aria-label="Background job">
    <header><a class="name" href=${`#/jobs/${item.id}`}>Background job</a> <${Badge} state=${item.state} />
      ${running && html`<${Elapsed} since=${item.time} />`}</header>
    ${item.command && html`<pre class="command" tabIndex="0" aria-label="Command">${item.command}</pre>`}
    ${running && html`<button type="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide" : "Show"} live log</button>`}
    ${running && open && html`<${JobLog} id=${item.id} live=${true} />`}
    ${!running && item.output && html`<${Output} text=${item.output} label="Output" />`}
    ${!running && html`<${ToolEnd} item=${item} />`}
    <${Files} files=${item.files} />
  </section>`;
}

function NoteCard({ item }) {
  return html`<p class=${`note ${item.tone}`} data-kind="note">${item.text} ${item.retry && html`<${TurnAction} turn=${item.retry} verb="retry" label="Retry" />`}</p>`;
}

function RetryCard({ item }) {
  return html`<section class="card retry" data-kind="retry" role="status" aria-label="Waiting for another attempt">
    <p>${item.error}</p>
    <footer>Attempt ${item.attempt + 1} follows <${Countdown} until=${Date.parse(item.at)} /> at <${Moment} time=${item.at} />.
      <${TurnAction} turn=${item.turn} verb="retry" label="Retry now" />
      <${TurnAction} turn=${item.turn} verb="cancel" label="Cancel" /></footer>
  </section>`;
}

/** A button that retries or cancels a turn. */
function TurnAction({ turn, verb, label }) {
  const [act, { busy, problem }] = useAction(() => call("POST", `turns/${turn}/${verb}`));
  if (!session.may("chat")) return null;
  return html`<button type="button" aria-disabled=${busy} onClick=${act}>${label}</button> <${Trouble} problem=${problem} />`;
}

const CARDS = {
  message: MessageCard,
  draft: DraftCard,
  tool: ToolCard,
  approval: ApprovalCard,
  job: JobCard,
  note: NoteCard,
  retry: RetryCard,
};
