// The answer of a person: approve or deny with a comment, or answer a question.

import { call, session } from "../core/api.js";
import { useFocusBetween } from "../parts/forms.js";
import { html, Trouble, useAction } from "../parts/parts.js";
import { useState } from "../vendor/hooks.mjs";

/** Approve or deny a tool call; `onDone` is called after the gateway accepted the decision. */
export function Decide({ approval, onDone = () => {} }) {
  const [comment, setComment] = useState("");
  const [settled, setSettled] = useState("");
  const [said] = useFocusBetween(settled !== "");
  const [decide, { busy, problem }] = useAction(async (decision) => {
    const body = { decision, ...(comment ? { comment } : {}) };
    await call("POST", `approvals/${approval}`, { body });
    setSettled(decision === "approve" ? "Approved; waiting for the gateway to continue." : "Denied.");
    onDone();
  });
  if (!session.may("chat")) return null;
  if (settled) return html`<footer role="status" tabIndex="-1" ref=${said}>${settled}</footer>`;
  return html`<div class="decide">
    <label>Comment (optional) <input value=${comment} maxLength="500" onInput=${(event) => setComment(event.target.value)} /></label>
    <p class="row">
      <button type="button" class="primary" aria-disabled=${busy} onClick=${() => decide("approve")}>Approve</button>
      <button type="button" class="danger" aria-disabled=${busy} onClick=${() => decide("deny")}>Deny</button>
    </p>
    <${Trouble} problem=${problem} />
  </div>`;
}

/** Answer a question: one of its choices, the fields of its form, or a text. */
export function Answer({ approval, choices, form, onDone = () => {} }) {
  const [settled, setSettled] = useState("");
  const [said] = useFocusBetween(settled !== "");
  const [send, { busy, problem }] = useAction(async (answer) => {
    await call("POST", `approvals/${approval}`, { body: { answer } });
    setSettled("Answered; waiting for the gateway to continue.");
    onDone();
  });
  if (!session.may("chat")) return null;
  if (settled) return html`<footer role="status" tabIndex="-1" ref=${said}>${settled}</footer>`;
  return html`<div class="decide">
    ${choices?.length > 0
      ? html`<p class="row">${choices.map((choice) => html`<button type="button" key=${choice} aria-disabled=${busy} onClick=${() => send(choice)}>${choice}</button>`)}</p>`
      : html`<${Fields} form=${form} busy=${busy} onSend=${send} />`}
    <${Trouble} problem=${problem} />
  </div>`;
}

function Fields({ form, busy, onSend }) {
  const [values, setValues] = useState({});
  const fields = Object.entries(form ?? { "": "Answer" });
  const submit = (event) => {
    event.preventDefault();
    onSend(form ? values : (values[""] ?? ""));
  };
  return html`<form class="stack" onSubmit=${submit}>
    ${fields.map(([name, text]) => html`<label key=${name}>${name ? `${name}: ${text}` : text} <input required maxLength="2000" value=${values[name] ?? ""}
      onInput=${(event) => setValues({ ...values, [name]: event.target.value })} /></label>`)}
    <p class="row"><button class="primary" aria-disabled=${busy}>Answer</button></p>
  </form>`;
}
