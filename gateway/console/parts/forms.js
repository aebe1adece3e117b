// Forms of the set-up places: labelled fields from a list, and the button that removes after a second press.

import { html, Trouble, useAction } from "./parts.js";
import { useState } from "../vendor/hooks.mjs";

/**
 * A form. `fields` are {name, label, kind: text | area | select | check | password | number, options, hint, required, value};
 * `onSend(values)` may throw a Problem, which is shown; afterwards the form is empty again, unless `keeps`.
 */
export function Form({ title, label = title, fields, action, onSend, keeps = false }) {
  const initial = () => Object.fromEntries(fields.map(({ name, value, kind }) => [name, value ?? (kind === "check" ? false : "")]));
  const [values, setValues] = useState(initial);
  const [said, setSaid] = useState("");
  const [send, { busy, problem }] = useAction(async () => {
    setSaid("");
    await onSend(values);
    setSaid("Done.");
    if (!keeps) setValues(initial());
  });
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  return html`<form class="stack" onSubmit=${submit} aria-label=${label}>
    ${title && html`<h2>${title}</h2>`}
    ${fields.map((field) => html`<${Field} field=${field} key=${field.name} value=${values[field.name] ?? field.value ?? ""} onValue=${(value) => setValues({ ...values, [field.name]: value })} />`)}
    <p class="row"><button class="primary" disabled=${busy}>${action}</button> <span role="status" class="quiet">${said}</span></p>
    <${Trouble} problem=${problem} />
  </form>`;
}

function Field({ field, value, onValue }) {
  const { name, label, kind = "text", options = [], hint, required = false, placeholder } = field;
  const changed = (event) => onValue(event.target.value);
  const described = hint ? `${name}-hint` : undefined;
  if (kind === "check") {
    return html`<label class="check"><input type="checkbox" checked=${value} onChange=${(event) => onValue(event.target.checked)} /> ${label}</label>`;
  }
  return html`<div><label>${label}
      ${kind === "select" && html`<select value=${value} onChange=${changed} aria-describedby=${described}>${options.map(([id, title]) => html`<option value=${id} key=${id}>${title}</option>`)}</select>`}
      ${kind === "area" && html`<textarea rows="6" value=${value} required=${required} aria-describedby=${described} placeholder=${placeholder} onInput=${changed} />`}
      ${!["select", "area"].includes(kind) && html`<input type=${kind} value=${value} required=${required} autoComplete="off" aria-describedby=${described} placeholder=${placeholder} onInput=${changed} />`}
    </label>${hint && html`<p id=${described} class="quiet">${hint}</p>`}</div>`;
}

/** A button that asks again before it removes. */
export function Remove({ onRemove, label = "Remove", sureLabel = "Confirm removal" }) {
  const [sure, setSure] = useState(false);
  const [remove, { busy, problem }] = useAction(onRemove);
  return html`${sure
      ? html`<button type="button" class="danger" disabled=${busy} onClick=${remove}>${sureLabel}</button>
        <button type="button" onClick=${() => setSure(false)}>Keep</button>`
      : html`<button type="button" onClick=${() => setSure(true)}>${label}</button>`}
    <${Trouble} problem=${problem} />`;
}

/** A button that does one thing; what it returns is said beside it. */
export function Act({ label, onAct, primary = false }) {
  const [said, setSaid] = useState("");
  const [act, { busy, problem }] = useAction(async () => setSaid((await onAct()) ?? ""));
  return html`<button type="button" class=${primary ? "primary" : ""} disabled=${busy} onClick=${act}>${label}</button>
    <span role="status" class="quiet">${said}</span><${Trouble} problem=${problem} />`;
}
