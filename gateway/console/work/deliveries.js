// Deliveries to chats and webhooks, with every attempt and a retry.

import { call, session } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Badge, Empty, html, Moment, span, Tabs, Trouble, useAction, useGrowing, usePolled } from "../parts/parts.js";

const EVERY = 5000;
const STATES = { "": "All", retrying: "Retried", dead: "Dead", delivered: "Delivered" };
const AGAIN = new Set(["dead", "ambiguous", "suppressed", "retrying", "parked"]);

export function View({ id, query }) {
  return id ? html`<${Delivery} id=${id} key=${id} />` : html`<${AllDeliveries} endpoint=${query.get("endpoint")} state=${query.get("state") ?? ""} />`;
}

function AllDeliveries({ endpoint, state }) {
  const { items, more, busy, problem, refresh } = useGrowing(state ? `deliveries?state=${encodeURIComponent(state)}` : "deliveries", EVERY);
  const shown = items?.filter(({ route }) => !endpoint || route.endpoint === endpoint);
  return html`<section class="view">
    <h1>Deliveries</h1>
    <p class="lead">Deliveries to chats and webhooks. This page has none: it reads the event stream.</p>
    <${Tabs} label="State" chosen=${state} options=${STATES} address=${(name) => addressOf("deliveries", null, { state: name, endpoint })} />
    ${endpoint && html`<p>Only those to one webhook. <a href="#/deliveries">Show all</a></p>`}
    <${Trouble} problem=${problem} retry=${refresh} />
    ${shown?.length === 0 && html`<${Empty} icon="send" title="None">${state ? "No delivery is in this state." : "Nothing was sent to a chat platform or a webhook yet."}</${Empty}>`}
    ${shown?.length > 0 && html`<ul class="rows">${shown.map((delivery) => html`<${DeliveryRow} delivery=${delivery} key=${delivery.id} />`)}</ul>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
  </section>`;
}

function DeliveryRow({ delivery }) {
  return html`<li>
    <a class="rowlink" href=${`#/deliveries/${delivery.id}`}>
      <${Badge} state=${delivery.state} />
      <span class="clip">${delivery.type} → ${routeName(delivery)}</span>
      <span class="quiet"><${Moment} time=${delivery.created_at} /></span>
    </a>
  </li>`;
}

function routeName(delivery) {
  const { kind, url, endpoint, channel, room, thread } = delivery.route;
  return url ?? endpoint ?? ([channel, room, thread].filter(Boolean).join(" · ") || kind);
}

function Delivery({ id }) {
  const { value: delivery, problem, refresh } = usePolled(() => call("GET", `deliveries/${id}`), EVERY, [id]);
  const [retry, trying] = useAction(async () => {
    await call("POST", `deliveries/${id}/retry`);
    await refresh();
  });
  return html`<section class="view">
    <p><a href="#/deliveries">← All deliveries</a></p>
    <h1>Delivery</h1>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${delivery && html`<${DeliveryFacts} delivery=${delivery} />
      ${AGAIN.has(delivery.state) && session.may("admin") && html`<p class="row"><button type="button" aria-disabled=${trying.busy} onClick=${retry}>Send again now</button></p>`}
      <${Trouble} problem=${trying.problem} />
      <${Attempts} attempts=${delivery.attempts} />`}
  </section>`;
}

function DeliveryFacts({ delivery }) {
  return html`<dl class="facts">
    <dt>State</dt><dd><${Badge} state=${delivery.state} /> ${delivery.uncertain && "(may have arrived more than once, or not)"}</dd>
    <dt>Event</dt><dd>${delivery.type} <code>${delivery.event}</code></dd>
    <dt>To</dt><dd>${routeName(delivery)}</dd>
    ${delivery.error && html`<dt>Error</dt><dd>${delivery.error}</dd>`}
    ${delivery.due_at && html`<dt>Next try</dt><dd><${Moment} time=${delivery.due_at} /></dd>`}
    <dt>Id</dt><dd><code>${delivery.id}</code></dd>
  </dl>`;
}

function Attempts({ attempts }) {
  if (attempts.length === 0) return html`<p class="empty">No attempts yet.</p>`;
  return html`<h2>Attempts</h2>
    <div class="scroll" tabIndex="0" role="region" aria-label="Attempts"><table>
      <thead><tr><th scope="col">Time</th><th scope="col">Outcome</th><th scope="col">Status</th><th scope="col">Took</th></tr></thead>
      <tbody>${attempts.map((attempt) => html`<tr key=${attempt.number}>
        <td><${Moment} time=${attempt.time} /></td>
        <td>${attempt.outcome ?? "under way"} ${attempt.detail ?? ""}</td>
        <td>${attempt.status ?? ""}</td>
        <td>${span(attempt.duration_ms)}</td>
      </tr>`)}</tbody>
    </table></div>`;
}
