// Webhook endpoints: list, add, test, rotate, delete. A secret is shown once.

import { call, list } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Act, Form, Remove } from "../parts/forms.js";
import { useState } from "../vendor/hooks.mjs";
import { Badge, Empty, html, Moment, Secret, Trouble, usePolled } from "../parts/parts.js";

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
    ${value?.length === 0 && html`<${Empty} icon="hook" title="No webhook yet">Add the address of a program that shall hear of answers and jobs.</${Empty}>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((hook) => html`<${Endpoint} hook=${hook} key=${hook.id} refresh=${refresh} tell=${setSecret} />`)}</ul>`}
    <${SignatureHelp} />
    <${Add} refresh=${refresh} tell=${setSecret} />
  </section>`;
}

function Endpoint({ hook, refresh, tell }) {
  const [tested, setTested] = useState(null);
  const test = async () => {
    setTested(null);
    setTested(await call("POST", `webhooks/${hook.id}/test`));
  };
  const rotate = async () => {
    const { secret } = await call("POST", `webhooks/${hook.id}/rotate`);
    tell({ secret, label: `The new signing secret of ${hook.url}. The old one stays valid for a while.` });
    await refresh();
  };
  const replay = async () => {
    const after = new Date(Date.now() - HOUR).toISOString();
    let count = 0;
    for (let cursor; cursor !== null; ) {
      const { replayed, next } = await call("POST", `webhooks/${hook.id}/replay`, { body: { after, cursor } });
      count += replayed;
      cursor = next;
    }
    return `${count} ${count === 1 ? "event is" : "events are"} sent again.`;
  };
  const enable = async () => {
    await call("PATCH", `${RECORDS}/${hook.id}`, { body: { enabled: true } });
    await refresh();
  };
  const isOn = hook.enabled !== false;
  return html`<li class="endpoint">
    <p><code class="wrap">${hook.url}</code> ${!isOn && html`<${Badge} state="disabled" /> ${hook.disabled_why}`}</p>
    <p class="quiet">${(hook.events ?? []).join(", ") || "all events"} · since <${Moment} time=${hook.created_at} /></p>
    <p class="row">
      ${isOn && html`<${Act} label="Test" needs="admin" onAct=${test} /><${Act} label="Replay the last hour" needs="admin" onAct=${replay} />`}
      <a class="button" href=${addressOf("deliveries", null, { endpoint: hook.id })}>Attempts</a>
      <${Act} label="Rotate the secret" needs="admin" onAct=${rotate} />
      ${!isOn && html`<${Act} label="Enable again" needs="admin" onAct=${enable} />`}
      <${Remove} onRemove=${() => call("DELETE", `${RECORDS}/${hook.id}`).then(refresh)} />
    </p>
    ${tested && html`<p role="status" class="quiet">A test event is on its way: <a href=${addressOf("deliveries", tested.delivery)}>see its attempts</a>.</p>`}
  </li>`;
}

/** How a receiver checks that a delivery is from this gateway. */
function SignatureHelp() {
  return html`<details><summary>How to check the signature</summary>
    <p>Take the secret without its prefix as base64. The signature is the base64 of HMAC-SHA256 over the header <code>webhook-id</code>, a full stop, the header
      <code>webhook-timestamp</code>, a full stop, and the body as it came. Compare it with each entry <code>v1,…</code> of the header <code>webhook-signature</code>, and refuse old timestamps.</p></details>`;
}

function Add({ refresh, tell }) {
  const add = async ({ url, events }) => {
    const wanted = events.split(/[\s,]+/).filter(Boolean);
    const made = await call("POST", RECORDS, { body: { url: url.trim(), events: wanted } });
    tell({ secret: made.secret, label: `The signing secret of ${made.url ?? url}.` });
    await refresh();
  };
  const fields = [
    { name: "url", label: "Address", kind: "url", required: true, placeholder: "https://example.org/hook" },
    { name: "events", label: "Events", required: true, value: "agent.finished", hint: "Separated by spaces, such as agent.finished job.completed job.failed." },
  ];
  return html`<${Form} title="Add a webhook" fields=${fields} action="Add" onSend=${add} />`;
}
