// Keys: who may use the account, and for what.

import { call, list, session } from "../core/api.js";
import { Form, Remove } from "../parts/forms.js";
import { html, Moment, Secret, Trouble, usePolled } from "../parts/parts.js";
import { useState } from "../vendor/hooks.mjs";

const RECORDS = "accounts/me/keys";
const SCOPES = { read: "read everything", chat: "write messages and answer approvals", jobs: "stop jobs", admin: "change the set-up" };

export function View() {
  const { value, problem, refresh } = usePolled(() => list(RECORDS), 0);
  const [secret, setSecret] = useState(null);
  const create = async ({ name, ...wanted }) => {
    const scopes = Object.keys(SCOPES).filter((scope) => wanted[scope]);
    const made = await call("POST", RECORDS, { body: { name: name.trim(), scopes } });
    setSecret({ secret: made.key, label: `The key ${made.name}.` });
    await refresh();
  };
  const fields = [{ name: "name", label: "Name", required: true }, ...Object.entries(SCOPES).map(([scope, what]) => ({ name: scope, label: `${scope}: ${what}`, kind: "check", value: scope === "read" }))];
  return html`<section class="view narrow">
    <h1>Keys</h1>
    <p class="lead">A key opens this console and the interfaces for programs.</p>
    ${secret && html`<${Secret} ...${secret} onDone=${() => setSecret(null)} />`}
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length > 0 && html`<ul class="rows">${value.map((key) => html`<li class="entry" key=${key.id} data-key=${key.name}><header><h2>${key.name}</h2>
      <span class="quiet">${key.scopes.join(", ")} · <${Moment} time=${key.created_at} /></span></header>
      ${key.id === session.author() ? html`<p class="quiet">You are using this key.</p>` : html`<p class="row"><${Remove} label="Revoke" sureLabel="Revoke now" onRemove=${() => call("DELETE", `${RECORDS}/${key.id}`).then(refresh)} /></p>`}</li>`)}</ul>`}
    <${Form} title="Create a key" fields=${fields} action="Create" onSend=${create} />
  </section>`;
}
