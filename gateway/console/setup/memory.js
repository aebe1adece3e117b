// Memory: what agents keep about persons, rooms, agents and the account.

import { call, session } from "../core/api.js";
import { Form, Remove } from "../parts/forms.js";
import { Empty, html, Moment, Trouble, useGrowing } from "../parts/parts.js";
import { useState } from "../vendor/hooks.mjs";
import { FIELDS, useRecordChanges } from "../parts/record_changes.js";

const RECORDS = "accounts/me/memories";
const SCOPES = [["account", "the account"], ["agent", "an agent"], ["person", "a person"], ["room", "a room"]];

export function View() {
  const [words, setWords] = useState("");
  const { items, more, busy, problem, refresh } = useGrowing(words ? `${RECORDS}?${new URLSearchParams({ q: words })}` : RECORDS, 0);
  const write = async ({ scope, subject, text }) => {
    await call("POST", RECORDS, { body: { scope, text, ...(subject.trim() ? { subject: subject.trim() } : {}) } });
    await refresh();
  };
  const fields = [
    { name: "scope", label: "About", kind: "select", value: "account", options: SCOPES },
    { name: "subject", label: "Which one", hint: "The name of the agent, or the id of the person or room; nothing for the account." },
    { name: "text", label: "Note", kind: "area", required: true },
  ];
  return html`<section class="view narrow">
    <h1>Memory</h1>
    <p class="lead">Notes that agents read in later conversations.</p>
    <label class="stack">Search <input type="search" value=${words} onChange=${(event) => setWords(event.target.value.trim())} /></label>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${items?.length === 0 && html`<${Empty} icon="memory" title=${words ? "Nothing matches" : "No note yet"}>Agents write notes when people ask them to remember something.</${Empty}>`}
    ${items?.length > 0 && html`<ul class="rows">${items.map((one) => html`<${Note} note=${one} refresh=${refresh} key=${one.id} />`)}</ul>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
    <${Form} title="Write a note" fields=${fields} action="Write" onSend=${write} needs="chat" />
  </section>`;
}

function Note({ note, refresh }) {
  const [editing, setEditing] = useState(false);
  const { save: change, reload, round } = useRecordChanges(`${RECORDS}/${note.id}`, note, refresh, FIELDS);
  const save = async ({ text }) => {
    await change({ text });
    setEditing(false);
  };
  return html`<li class="entry" data-memory=${note.id}>
    ${editing ? html`<${Form} fields=${[{ name: "text", label: "Note", kind: "area", required: true, value: note.text }]} action="Save" onSend=${save} onReload=${reload} keeps=${true} needs="chat" key=${round} />` : html`<p class="wrap">${note.text}</p>`}
    <p class="quiet">${note.scope} · ${note.subject} · <${Moment} time=${note.updated_at} /></p>
    <p class="row">${session.may("chat") && html`<button type="button" onClick=${() => setEditing(!editing)}>${editing ? "Cancel" : "Edit"}</button>`} <${Remove} needs="chat" onRemove=${() => call("DELETE", `${RECORDS}/${note.id}`).then(refresh)} /></p></li>`;
}
