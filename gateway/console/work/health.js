// Health: the gateway's liveness and readiness.

import { probe } from "../core/api.js";
import { Badge, html, Output, Trouble, usePolled } from "../parts/parts.js";

const EVERY = 5000;

export function View() {
  // Nothing else on this page takes the focus, so the keyboard scrolls a small window by the section itself.
  return html`<section class="view" tabIndex="0" aria-label="Health">
    <h1>Health</h1>
    <${Probe} path="readyz" title="Ready" question="Does it take messages, run turns and deliver?" words=${["ready", "unready"]} />
    <${Probe} path="healthz" title="Alive" question="Does the process answer?" words=${["alive", "failed"]} />
  </section>`;
}

function Probe({ path, title, question, words }) {
  const { value, problem, refresh } = usePolled(() => probe(path), EVERY, [path]);
  return html`<article class="card" data-probe=${path}>
    <header><h2>${title}</h2> ${value && html`<${Badge} state=${words[value.status === 200 ? 0 : 1]} />`}</header>
    <p class="quiet">${question}</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value && html`<${Answer} body=${value.body} />`}
  </article>`;
}

function Answer({ body }) {
  if (body === null || typeof body !== "object") return html`<p>${String(body)}</p>`;
  return html`<dl class="facts">${Object.entries(body).map(([name, value]) => html`<dt>${name}</dt><dd><${Value} value=${value} /></dd>`)}</dl>`;
}

function Value({ value }) {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (value === null || typeof value !== "object") return String(value);
  const entries = Object.entries(value);
  if (entries.length === 0) return html`<span class="quiet">none</span>`;
  if (entries.some(([, inner]) => inner !== null && typeof inner === "object")) {
    return html`<${Output} text=${JSON.stringify(value, null, 2)} label="Details" />`;
  }
  if (Array.isArray(value)) return value.join(", ");
  return html`<ul>${entries.map(([name, inner]) => html`<li key=${name}>${name}: ${String(inner)}</li>`)}</ul>`;
}
