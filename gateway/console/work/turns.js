// Turns: what agents did for messages, and the trace of one turn as a line of time.

import { call, session } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Badge, Empty, html, Moment, Output, span, Tabs, toneOf, Trouble, useAction, useGrowing, usePolled } from "../parts/parts.js";
import { useState } from "../vendor/hooks.mjs";
import { STEP_WORDS } from "./step_words.js";

const EVERY = 5000;
const STATES = { "": "All", running: "Running", queued: "Queued", waiting: "Waiting", failed: "Failed", dead: "Dead letters" };

export function View({ id, query }) {
  return id ? html`<${OneTurn} id=${id} key=${id} />` : html`<${AllTurns} state=${query.get("state") ?? ""} />`;
}

function AllTurns({ state }) {
  const path = state === "dead" ? "turns?dead=true" : `turns${state ? `?state=${encodeURIComponent(state)}` : ""}`;
  const { items, more, busy, problem, refresh } = useGrowing(path, EVERY);
  return html`<section class="view">
    <h1>Turns</h1>
    <p class="lead">One turn is what an agent does for a message, the result of a job, or a schedule.</p>
    <${Tabs} label="State" chosen=${state} options=${STATES} address=${(name) => addressOf("turns", null, { state: name })} />
    <${Trouble} problem=${problem} retry=${refresh} />
    ${items?.length === 0 && html`<${Empty} icon="turn" title="None">${state ? "No turn is in this state." : "A message to an agent starts the first turn."}</${Empty}>`}
    ${items?.length > 0 && html`<ul class="rows">${items.map((turn) => html`<li key=${turn.id}><a class="rowlink" href=${addressOf("turns", turn.id)} data-turn=${turn.id}>
      <${Badge} state=${turn.dead ? "dead" : turn.state} /> <span class="clip">${turn.input || turn.trigger}</span> <span class="quiet"><${Moment} time=${turn.created_at} /></span></a></li>`)}</ul>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
  </section>`;
}

function OneTurn({ id }) {
  const { value, problem, refresh } = usePolled(() => readTurn(id), EVERY, [id]);
  return html`<section class="view narrow">
    <p><a href="#/turns">← All turns</a></p>
    <h1>Turn</h1>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value && html`<${Facts} status=${value.status} /><${Actions} status=${value.status} refresh=${refresh} />
      <h2>Trace</h2><${Timeline} steps=${stepsOf(value)} />`}
  </section>`;
}

async function readTurn(id) {
  const [status, trace, log] = await Promise.all([call("GET", `status/${id}`), call("GET", `trace/${id}`), call("GET", `turns/${id}/log?limit=200`)]);
  return { status, trace, log: log.items };
}

function Facts({ status }) {
  const ended = status.finished_at ?? null;
  const { usage } = status;
  return html`<dl class="facts">
    <dt>State</dt><dd><${Badge} state=${status.state} /> ${status.error ?? ""}</dd>
    <dt>Conversation</dt><dd><a href=${addressOf("inbox", status.conversationId)}>Open the conversation</a></dd>
    <dt>Started by</dt><dd>${status.trigger}</dd>
    ${status.started_at && html`<dt>Started</dt><dd><${Moment} time=${status.started_at} /> ${ended && html`<span class="quiet">took ${span(Date.parse(ended) - Date.parse(status.started_at))}</span>`}</dd>`}
    ${usage && html`<dt>Model</dt><dd>${usage.model} <span class="quiet">${usage.requests} ${usage.requests === 1 ? "request" : "requests"}, ${usage.input_tokens.toLocaleString()} tokens in, ${usage.output_tokens.toLocaleString()} out</span></dd>`}
    <dt>Attempt</dt><dd>${status.attempt}</dd>
    <dt>Id</dt><dd><code>${status.id}</code></dd>
  </dl>`;
}

function Actions({ status, refresh }) {
  const [act, { busy, problem }] = useAction(async (verb) => {
    await call("POST", `turns/${status.id}/${verb}`);
    await refresh();
  });
  const mayCancel = ["queued", "running", "waiting"].includes(status.state);
  const mayRetry = status.state === "failed" || status.next_at;
  if (!session.may("chat") || (!mayCancel && !mayRetry)) return null;
  return html`<p class="row">
    ${mayRetry && html`<button type="button" aria-disabled=${busy} onClick=${() => act("retry")}>Retry</button>`}
    ${mayCancel && html`<button type="button" class="danger" aria-disabled=${busy} onClick=${() => act("cancel")}>Cancel</button>`}
  </p><${Trouble} problem=${problem} />`;
}

/** The steps of a trace, with the whole call and result at each end of a tool. */
function stepsOf({ trace, log }) {
  const calls = [...log];
  return trace.steps.map((step) => {
    const call = step.state === "tool.completed" ? calls.shift() : undefined;
    return { ...step, call };
  });
}

function Timeline({ steps }) {
  const begin = steps.length > 0 ? Date.parse(steps[0].time) : 0;
  return html`<ol class="steps">${steps.map((step, index) => html`<${Step} step=${step} after=${Date.parse(step.time) - begin} key=${`${step.id}${step.state}${index}`} />`)}</ol>`;
}

function Step({ step, after }) {
  const [open, setOpen] = useState(false);
  const [, ending = step.state] = step.state.split(".");
  const words = STEP_WORDS[step.state] ?? `${step.what === "event" ? "" : `${step.what}: `}${step.state}`;
  const more = step.call ? JSON.stringify(step.call, null, 2) : null;
  return html`<li class=${`step ${TONES[toneOf(ending)] ?? ""}`}>
    <span class="when" title=${step.time}>${after === 0 ? "start" : `+${span(after)}`}</span><span class="line" aria-hidden="true" />
    <div class="what"><p><strong>${words}</strong></p>
      ${step.detail && html`<p class="quiet">${step.detail}</p>`}
      ${more && html`<button type="button" class="small" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide" : "Show"} call and result</button>`}
      ${open && html`<${Output} text=${more} label="Call and result" />`}</div></li>`;
}

const TONES = { bad: "bad", busy: "busy" };
