// Webhook endpoints: list, add, test, rotate, delete. A secret is shown once.

import { call, list } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Act } from "../parts/forms.js";
import { useState } from "../vendor/hooks.mjs";
import { Badge, html, Moment, Secret, Trouble, useAction, usePolled } from "../parts/parts.js";

const RECORDS = "accounts/me/webhooks";
const EVERY = 10_000;
const HOUR = 3_600_000;

export function View() {
  const { value, problem, refresh } = usePolled(() => list(RECORDS), EVERY);
  const [secret, setSecret] = useState(null);
  return html`<section class="view">
    <h1>Webhooks</h1>
    <p class="lead">URLs that receive events. Deliveries are signed and retried.</p>
    ${secret && html`<${Secret} ...${secret} onDone=${() => setSecret(null)} />`}
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<p class="empty">No webhooks yet.</p>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((hook) => html`<${Endpoint} hook=${hook} key=${hook.id} refresh=${refresh} tell=${setSecret} />`)}</ul>`}
    <${SignatureHelp} />
    <${Add} refresh=${refresh} tell=${setSecret} />
  </section>`;
}

function Endpoint({ hook, refresh, tell }) {
  const [sure, setSure] = useState(false);
  const [said, setSaid] = useState("");
  const [test, testing] = useAction(async () => {
    await call("POST", `webhooks/${hook.id}/test`);
    setSaid("A test event is on its way; see Deliveries.");
  });
  const [rotate, rotating] = useAction(async () => {
    const { secret } = await call("POST", `webhooks/${hook.id}/rotate`);
    tell({ secret, label: `The new signing secret of ${hook.url}. The old one stays valid for a while.` });
    await refresh();
  });
  const replay = async () => {
    const after = new Date(Date.now() - HOUR).toISOString();
    const { replayed, more } = await call("POST", `webhooks/${hook.id}/replay`, { body: { after } });
    return `${replayed} ${replayed === 1 ? "event is" : "events are"} sent again${more ? "; there are more" : ""}.`;
  };
  const [enable, enabling] = useAction(async () => {
    await call("PATCH", `${RECORDS}/${hook.id}`, { body: { enabled: true } });
    await refresh();
  });
  const [remove, removing] = useAction(async () => {
    await call("DELETE", `${RECORDS}/${hook.id}`);
    await refresh();
  });
  return html`<li class="endpoint">
    <p><code class="wrap">${hook.url}</code> ${hook.enabled === false && html`<${Badge} state="disabled" /> ${hook.disabled_why}`}</p>
    <p class="quiet">${(hook.events ?? []).join(", ") || "all events"} · since <${Moment} time=${hook.created_at} /></p>
    <p class="row">
      <button type="button" disabled=${testing.busy} onClick=${test}>Test</button>
      <${Act} label="Replay the last hour" onAct=${replay} />
      <a class="button" href=${addressOf("deliveries", null, { endpoint: hook.id })}>Attempts</a>
      <button type="button" disabled=${rotating.busy} onClick=${rotate}>Rotate the secret</button>
      ${hook.enabled === false && html`<button type="button" disabled=${enabling.busy} onClick=${enable}>Enable again</button>`}
      ${sure
        ? html`<button type="button" class="danger" disabled=${removing.busy} onClick=${remove}>Confirm removal</button>
          <button type="button" onClick=${() => setSure(false)}>Keep</button>`
        : html`<button type="button" onClick=${() => setSure(true)}>Remove</button>`}
    </p>
    <p role="status" class="quiet">${said}</p>
    <${Trouble} problem=${testing.problem ?? rotating.problem ?? enabling.problem ?? removing.problem} />
  </li>`;
}

/** How a receiver checks that a delivery is from this gateway. */
function SignatureHelp() {
  return html`<details><summary>How to check the signature</summary>
    <p>Take the secret without its prefix as base64. The signature is the base64 of HMAC-SHA256 over the header <code>webhook-id</code>, a full stop, the header
      <code>webhook-timestamp</code>, a full stop, and the body as it came. Compare it with each entry <code>v1,…</code> of the header <code>webhook-signature</code>, and refuse old timestamps.</p></details>`;
}

function Add({ refresh, tell }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState("agent.finished");
  const [add, { busy, problem }] = useAction(async () => {
    const wanted = events.split(/[\s,]+/).filter(Boolean);
    const made = await call("POST", RECORDS, { body: { url: url.trim(), events: wanted } });
    tell({ secret: made.secret, label: `The signing secret of ${made.url ?? url}.` });
    setUrl("");
    await refresh();
  });
  const submit = (event) => {
    event.preventDefault();
    add();
  };
  return html`<form class="stack" onSubmit=${submit}>
    <h2>Add a webhook</h2>
    <label>Address <input type="url" required value=${url} placeholder="https://example.org/hook" onInput=${(event) => setUrl(event.target.value)} /></label>
    <label>Events <input required value=${events} onInput=${(event) => setEvents(event.target.value)} aria-describedby="events-hint" /></label>
    <p id="events-hint" class="quiet">Separated by spaces, such as agent.finished job.completed job.failed.</p>
    <p class="row"><button class="primary" disabled=${busy}>Add</button></p>
    <${Trouble} problem=${problem} />
  </form>`;
}
