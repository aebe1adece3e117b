// Home: whether the gateway is ready, what is at work, what needs a person, and how the last day went.

import { call, list, probe } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Bars, perHour } from "../parts/charts.js";
import { Badge, html, Trouble, usePolled } from "../parts/parts.js";
import { FirstSteps } from "./first_steps.js";

const EVERY = 5000;
const SLOW = 30_000;
const DAY = 86_400_000;
const DAY_PAGES = 10;

export function View({ live }) {
  const { value: now, problem, refresh } = usePolled(readNow, EVERY);
  const { value: day } = usePolled(readDay, SLOW);
  const { value: set } = usePolled(readSetUp, SLOW);
  return html`<section class="view">
    <h1>Home</h1>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${now && html`<${Readiness} ready=${now.ready} />`}
    ${set && day && html`<${FirstSteps} set=${set} hasTurns=${day.turns.length > 0} />`}
    ${now && html`<${Figures} now=${now} waiting=${live.pending?.length ?? 0} />`}
    ${day && html`<${LastDay} day=${day} />`}
    ${set && html`<${Channels} channels=${set.channels} />`}
    ${set && html`<${Usage} usage=${set.usage} />`}
  </section>`;
}

async function readNow() {
  const [ready, running, queued, retrying, jobs, dead] = await Promise.all([
    probe("readyz"), list("turns?state=running", 1), list("turns?state=queued", 1), list("deliveries?state=retrying", 1),
    list("jobs?state=running", 1), Promise.all([list("turns?dead=true", 1), list("deliveries?state=dead", 1)]),
  ]);
  return { ready, running, queued, retrying, jobs, dead };
}

/** The turns and deliveries of the last 24 hours; of a busier day the newest thousand. */
async function readDay() {
  const since = Date.now() - DAY;
  const isRecent = ({ created_at: time }) => Date.parse(time) >= since;
  const recent = async (path) => {
    const found = await list(path, DAY_PAGES, isRecent);
    return found.filter(isRecent);
  };
  const [turns, deliveries] = await Promise.all([recent("turns"), recent("deliveries")]);
  return { turns, deliveries };
}

async function readSetUp() {
  const [channels, agents, usage] = await Promise.all([list("accounts/me/channels"), list("accounts/me/agents"), call("GET", "accounts/me/usage")]);
  const states = await Promise.all(channels.map(({ id }) => call("GET", `accounts/me/channels/${id}/status`).catch(() => null)));
  return { channels: channels.map((channel, index) => ({ ...channel, status: states[index] })), agents, usage };
}

function Readiness({ ready }) {
  const { status, body } = ready;
  const problems = Object.entries({ ...body?.checks, ...body?.degraded }).filter(([, state]) => state !== "ok");
  return html`<p class="row"><${Badge} state=${status === 200 ? "ready" : "not ready"} />
    <span class="quiet">${problems.length === 0 ? "The gateway takes messages, runs turns and delivers." : problems.map(([name, state]) => `${name}: ${state}`).join(" · ")}</span>
    <a class="quiet" href="#/health">Details</a></p>`;
}

function Figures({ now, waiting }) {
  const deadCount = now.dead[0].length + now.dead[1].length;
  const more = now.dead.some((one) => one.more);
  return html`<div class="tiles six">
    <${Tile} figure=${waiting} what="wait for you" href="#/approvals" tone=${waiting > 0 ? "busy" : ""} />
    <${Tile} figure=${counted(now.running)} what="turns at work" href=${addressOf("turns", null, { state: "running" })} />
    <${Tile} figure=${counted(now.queued)} what="turns in the queue" href=${addressOf("turns", null, { state: "queued" })} />
    <${Tile} figure=${counted(now.jobs)} what="jobs at work" href="#/jobs" />
    <${Tile} figure=${counted(now.retrying)} what="deliveries are retried" href="#/deliveries" />
    <${Tile} figure=${`${deadCount}${more ? "+" : ""}`} what="dead letters" href=${addressOf("turns", null, { state: "dead" })} tone=${deadCount > 0 ? "bad" : ""} />
  </div>`;
}

function counted(items) {
  return `${items.length}${items.more ? "+" : ""}`;
}

function Tile({ figure, what, href, tone = "" }) {
  return html`<a class="tile" href=${href}><span class=${`figure ${tone}`}>${figure}</span> <span class="what">${what}</span></a>`;
}

function LastDay({ day }) {
  if (day.turns.length === 0 && day.deliveries.length === 0) return null;
  const now = Date.now();
  const times = (items) => perHour(items.map(({ created_at: time }) => time), now);
  const failed = (items, states) => times(items.filter(({ state }) => states.includes(state)));
  return html`<h2>The last day</h2><div class="charts">
    <${Bars} title="Turns" unit="turns" counts=${times(day.turns)} bad=${failed(day.turns, ["failed"])} />
    <${Bars} title="Deliveries" unit="deliveries" counts=${times(day.deliveries)} bad=${failed(day.deliveries, ["dead"])} />
  </div>`;
}

function Channels({ channels }) {
  return html`<h2>Channels</h2>
    ${channels.length === 0
      ? html`<p class="empty">None yet. <a href="#/channels">Connect Telegram, Slack, Discord or another platform.</a></p>`
      : html`<ul class="rows">${channels.map((channel) => html`<li key=${channel.id}><a class="rowlink" href=${addressOf("channels", channel.id)}>
        <${Badge} state=${channel.status?.state ?? "unknown"} /> <span class="clip">${channel.name}</span> <span class="quiet">${channel.kind}</span></a></li>`)}</ul>`}`;
}

function Usage({ usage }) {
  const { total } = usage;
  return html`<h2>Usage so far</h2><div class="tiles">
    <${Tile} figure=${total.requests.toLocaleString()} what="model requests" href="#/usage" />
    <${Tile} figure=${(total.input_tokens + total.output_tokens).toLocaleString()} what="tokens" href="#/usage" />
    <${Tile} figure=${total.cost.toFixed(2)} what="cost" href="#/usage" />
    <${Tile} figure=${`${Math.round(total.sandbox_seconds / 60)} min`} what="of sandboxes" href="#/usage" />
  </div>`;
}
