// Channels: connect a chat platform, pause and change it, see whether it receives, and let people in.

import { call, list, Problem, session } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Act, Form, Remove } from "../parts/forms.js";
import { PlatformMark } from "../parts/icons.js";
import { Badge, Empty, html, Moment, Trouble, usePolled } from "../parts/parts.js";
import { useMemo, useState } from "../vendor/hooks.mjs";
import { KINDS } from "./channel_kinds.js";
import { FIELDS, SETTINGS, useRecordChanges } from "../parts/record_changes.js";

const RECORDS = "accounts/me/channels";
const EVERY = 5000;

export function View({ id }) {
  return id ? html`<${OneChannel} id=${id} key=${id} />` : html`<${AllChannels} />`;
}

async function withStatus(channel) {
  return { ...channel, status: await call("GET", `${RECORDS}/${channel.id}/status`).catch(() => null) };
}

function AllChannels() {
  const { value, problem, refresh } = usePolled(async () => Promise.all((await list(RECORDS)).map(withStatus)), EVERY);
  return html`<section class="view narrow">
    <h1>Channels</h1>
    <p class="lead">A channel connects a chat platform with an agent.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<${Empty} icon="channel" title="No channel yet">Choose a platform below. Its form says where to get the token.</${Empty}>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((channel) => html`<li key=${channel.id}><a class="rowlink" href=${addressOf("channels", channel.id)} data-channel=${channel.name}>
      <${PlatformMark} kind=${channel.kind} /> <span class="clip">${channel.name}</span> <${Badge} state=${channel.status?.state ?? "unknown"} /></a></li>`)}</ul>`}
    ${session.may("admin") && html`<${Connect} />`}
  </section>`;
}

function Connect() {
  const [kind, setKind] = useState("telegram");
  const { value: agents } = usePolled(() => list("accounts/me/agents"), 0);
  const { title, hint, settings, manifest } = KINDS[kind];
  const create = async ({ name, agent, more, paused, ...given }) => {
    const filled = Object.fromEntries(Object.entries(given).filter(([key, value]) => value !== "" && settings.some((field) => field.name === key)));
    const made = await call("POST", RECORDS, { body: { name: name.trim(), kind, agent: agent || agents[0].id, paused, settings: { ...readSettings(more || "{}"), ...filled } } });
    location.hash = addressOf("channels", made.id);
  };
  const fields = [
    { name: "name", label: "Name", value: kind, required: true },
    ...settings,
    ...(agents?.length > 1 ? [{ name: "agent", label: "Agent that answers", kind: "select", options: agents.map((one) => [one.id, one.name]), value: agents[0].id }] : []),
    { name: "more", pointer: "/settings", label: "Further settings (JSON)", kind: "area", placeholder: '{"allow": ["pairing"]}', hint: "Those of the platform's guide; leave it empty to have their defaults." },
    { name: "paused", label: "Connect it paused: messages are received once you resume it", kind: "check" },
  ];
  return html`<h2>Connect a platform</h2>
    <div class="stack"><label>Platform <select value=${kind} onChange=${(event) => setKind(event.target.value)}>${Object.entries(KINDS).map(([name, one]) => html`<option value=${name} key=${name}>${one.title}</option>`)}</select></label>
      <p class="quiet">${hint}</p>
      ${manifest && html`<${Manifest} file=${manifest} />`}
    </div>
    ${agents?.length === 0 && html`<p class="empty">Messages need an agent that answers. <a href="#/agents">Add an agent</a></p>`}
    ${agents?.length > 0 && html`<${Form} key=${kind} label=${`Connect ${title}`} fields=${fields} action="Connect" onSend=${create} />`}`;
}

/** The manifest of an app, to paste at its platform. */
function Manifest({ file }) {
  const { value } = usePolled(async () => (await fetch(file)).text(), 0, [file]);
  const copy = async () => {
    await navigator.clipboard.writeText(value);
    return "Copied.";
  };
  return html`<details><summary>Manifest of the app</summary>
    ${value && html`<p class="row"><${Act} label="Copy the manifest" onAct=${copy} /></p><pre class="code" tabIndex="0" aria-label="Manifest">${value}</pre>`}</details>`;
}

function OneChannel({ id }) {
  const { value: channel, problem, refresh } = usePolled(async () => withStatus(await call("GET", `${RECORDS}/${id}`)), EVERY, [id]);
  return html`<section class="view narrow">
    <p><a href="#/channels">← All channels</a></p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${channel && html`<h1>${channel.name}</h1><${Facts} channel=${channel} /><${Check} channel=${channel} refresh=${refresh} />
      <${Answers} channel=${channel} refresh=${refresh} /><${Settings} channel=${channel} refresh=${refresh} />
      <${Pairings} id=${id} />
      ${!channel.managed && html`<h2>Remove</h2><p class="row"><${Remove} onRemove=${() => removeChannel(id)} /></p>`}`}
  </section>`;
}

async function removeChannel(id) {
  await call("DELETE", `${RECORDS}/${id}`);
  location.hash = "#/channels";
}

function Facts({ channel }) {
  return html`<dl class="facts">
    <dt>Platform</dt><dd>${KINDS[channel.kind]?.title ?? channel.kind}</dd>
    <dt>State</dt><dd><${Badge} state=${channel.status?.state ?? "unknown"} /> ${channel.status?.reason ?? ""}</dd>
    <dt>Settings</dt><dd><pre class="command" tabIndex="0" aria-label="Settings">${JSON.stringify(channel.settings, null, 2)}</pre></dd>
    ${channel.managed && html`<dt>From</dt><dd>the configuration file; change it there</dd>`}
    <dt>Conversations</dt><dd><a href=${addressOf("inbox", null, { kind: channel.kind })}>Open in the inbox</a></dd>
  </dl>`;
}

function Check({ channel, refresh }) {
  const [result, setResult] = useState(null);
  const test = async () => {
    setResult(null);
    setResult(await call("POST", `channels/${channel.id}/test`));
  };
  const pause = async () => {
    await call("PATCH", `${RECORDS}/${channel.id}`, { body: { paused: !channel.paused } });
    await refresh();
  };
  return html`<p class="row"><${Act} label="Test the connection" needs="admin" onAct=${test} />
      ${!channel.managed && html`<${Act} label=${channel.paused ? "Resume" : "Pause"} needs="admin" onAct=${pause} />`}</p>
    ${channel.paused && html`<p class="quiet">Paused: messages are not received, and replies are still sent.</p>`}
    ${result && html`<ul class="rows" role="status">${result.findings.map((finding) => html`<li class="entry" key=${finding.subject}>
      <${Badge} state=${finding.ok ? "ok" : "failed"} /> ${finding.detail} ${finding.remedy && html`<p class="quiet">${finding.remedy}</p>`}</li>`)}</ul>`}`;
}

/** The object in a text that a person wrote as JSON; throws a Problem that names the settings. */
function readSettings(text) {
  const [found, fault] = parsed(text);
  if (fault !== null) throw new Problem({ title: "Nothing was changed", errors: [{ pointer: "/settings", detail: fault }] });
  return found;
}

function parsed(text) {
  try {
    const found = JSON.parse(text);
    return typeof found === "object" && found !== null && !Array.isArray(found) ? [found, null] : [null, "must be an object: {…}"];
  } catch (error) {
    return [null, `is no JSON: ${error.message}`];
  }
}

/** All settings as JSON; keys that a person removes get their defaults, and *** keeps a secret. */
function Settings({ channel, refresh }) {
  const { save: change, reload, round } = useRecordChanges(`${RECORDS}/${channel.id}`, channel, refresh, SETTINGS);
  const shown = useMemo(() => ({ current: channel.settings }), [round]);
  if (channel.managed) return null;
  const save = async ({ settings }) => {
    const wanted = readSettings(settings);
    const removed = Object.keys(shown.current).filter((key) => !(key in wanted)).map((key) => [key, null]);
    const changed = Object.entries(wanted).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(shown.current[key]));
    await change(Object.fromEntries([...removed, ...changed]));
    shown.current = wanted;
  };
  const fields = [{ name: "settings", pointer: "/settings", label: "Settings (JSON)", kind: "area", required: true, value: JSON.stringify(shown.current, null, 2), hint: "*** stands for a secret and keeps it." }];
  return session.may("admin") && html`<details><summary>Change the settings</summary><${Form} label="Settings" fields=${fields} action="Save the settings" onSend=${save} onReload=${reload} keeps=${true} key=${round} /></details>`;
}

/** Which agent answers. */
function Answers({ channel, refresh }) {
  const { value: agents } = usePolled(() => list("accounts/me/agents"), 0);
  const { save, reload, round } = useRecordChanges(`${RECORDS}/${channel.id}`, channel, refresh, FIELDS);
  if (agents === null || channel.managed) return null;
  const fields = [{ name: "agent", label: "Agent that answers", kind: "select", value: channel.agent, options: agents.map((one) => [one.id, one.name]) }];
  return html`<${Form} label="Agent that answers" fields=${fields} action="Save" onSend=${({ agent }) => save({ agent })} onReload=${reload} keeps=${true} key=${round} />`;
}

function Pairings({ id }) {
  const { value, problem, refresh } = usePolled(() => list(`${RECORDS}/${id}/pairings`), EVERY, [id]);
  return html`<h2>People</h2>
    <p class="quiet">Someone unknown who writes to the bot gets a code. Ask them for it, to be sure who they are, and let them in.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<p class="empty">Nobody has asked yet.</p>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((one) => html`<li class="entry" key=${one.person} data-person=${one.person}><header>
      <h3>${one.name || one.person}</h3> <${Badge} state=${one.state} /> <span class="quiet">${one.person} · <${Moment} time=${one.paired_at ?? one.created_at} /></span></header>
      ${one.state === "waiting"
        ? html`<${LetIn} id=${id} refresh=${refresh} />`
        : html`<p class="row"><${Remove} label="Send away" sureLabel="Confirm" onRemove=${() => call("DELETE", `${RECORDS}/${id}/pairings/${encodeURIComponent(one.person)}`).then(refresh)} /></p>`}</li>`)}</ul>`}`;
}

function LetIn({ id, refresh }) {
  const pair = async ({ code }) => {
    await call("POST", `${RECORDS}/${id}/pairings`, { body: { code: code.trim() } });
    await refresh();
  };
  return html`<${Form} fields=${[{ name: "code", label: "Their code", required: true }]} action="Let in" onSend=${pair} />`;
}
