// Sandboxes: which are alive, since when, and for whom; commands in them; and their records.

import { call, list, session } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Act, Form, Remove } from "../parts/forms.js";
import { Badge, Empty, html, Moment, Output, span, Trouble, usePolled } from "../parts/parts.js";
import { useState } from "../vendor/hooks.mjs";

const EVERY = 5000;
const RUN_SECONDS = 120;

export function View() {
  const { value, problem, refresh } = usePolled(async () => {
    const [live, records] = await Promise.all([list("sandboxes"), list("accounts/me/sandboxes")]);
    return { live, records };
  }, EVERY);
  return html`<section class="view">
    <h1>Sandboxes</h1>
    <p class="lead">Where the commands of agents run. A stopped sandbox starts again when it is needed.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.live.length === 0 && html`<${Empty} icon="box" title="No sandbox is alive">One starts with the first command of an agent.</${Empty}>`}
    ${value?.live.length > 0 && html`<div class="cards">${value.live.map((one) => html`<${LiveSandbox} sandbox=${one} refresh=${refresh} key=${one.id} />`)}</div>`}
    ${value && html`<h2>Kinds</h2><ul class="rows">${value.records.map(({ id, name, config }) => html`<li class="entry" key=${id}><header><h3>${name}</h3>
      <span class="quiet">${config.provider} · network ${config.network?.mode} · ${config.permissionMode === "bypass" ? "runs without asking" : "asks before commands"}</span></header></li>`)}</ul>`}
  </section>`;
}

function LiveSandbox({ sandbox, refresh }) {
  const stop = async () => {
    await call("POST", `sandboxes/${sandbox.id}/stop`);
    await refresh();
  };
  return html`<article class="card" data-sandbox=${sandbox.id}>
    <header><span class="name">${sandbox.name || sandbox.id}</span> <${Badge} state=${sandbox.state} /> <span class="quiet">${sandbox.provider}</span></header>
    <dl class="facts">
      <dt>Belongs to</dt><dd>${sandbox.scope}${sandbox.conversation && html` · <a href=${addressOf("inbox", sandbox.conversation)}>conversation</a>`}</dd>
      <dt>Active for</dt><dd>${span(sandbox.seconds * 1000)} <span class="quiet">last used <${Moment} time=${sandbox.used_at} /></span></dd>
      <dt>Files</dt><dd>${sandbox.workspace ? html`<a href=${addressOf("workspaces", sandbox.workspace)}>Open the workspace</a>` : "no workspace"}${sandbox.snapshot && " · a snapshot is kept"}</dd>
    </dl>
    <${Run} sandbox=${sandbox} refresh=${refresh} />
    <p class="row">${sandbox.state === "active" && html`<${Act} label="Stop" needs="admin" onAct=${stop} />`}
      <${Remove} label="Delete" sureLabel="Delete with its files" onRemove=${() => call("DELETE", `sandboxes/${sandbox.id}`).then(refresh)} /></p>
  </article>`;
}

/** A command in the sandbox, which wakes a stopped one. */
function Run({ sandbox, refresh }) {
  const [result, setResult] = useState(null);
  const run = async ({ command }) => {
    setResult(null);
    setResult(await call("POST", `sandboxes/${sandbox.id}/exec`, { body: { command, timeout: RUN_SECONDS }, patience: (RUN_SECONDS + 10) * 1000 }));
    await refresh();
  };
  return session.may("admin") && html`<details><summary>Run a command</summary>
    <${Form} label=${`Run a command in ${sandbox.name || sandbox.id}`} fields=${[{ name: "command", label: "Command", required: true, placeholder: "ls -la" }]} action="Run" onSend=${run} keeps="quietly" />
    ${result && html`<div role="status"><${Output} text=${`${result.stdout}${result.stderr}` || "no output"} label="Output" />
      <p class="quiet">${result.timed_out ? "timed out" : `exit code ${result.exit_code}`} · ${span(result.duration_ms)}${result.truncated ? " · output cut" : ""}</p></div>`}</details>`;
}
