// Forms of the set-up places: labelled fields from a list with their faults, and buttons that do one thing.

import { session } from "../core/api.js";
import { html, Trouble, useAction } from "./parts.js";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "../vendor/hooks.mjs";

/**
 * A form. `fields` are {name, label, kind: text | area | select | check | password | number, options, hint, required,
 * value, pointer}; `pointer` begins where the gateway names faults of this field, if not by the field's name.
 * `onSend(values, changed)` may throw a Problem: faults of fields are shown at them. `changed` has only the values that
 * a person changed. Afterwards the form is empty again, unless it `keeps` what it has. A form asks before the page is
 * left with something unsaved, unless it keeps "quietly" what is never stored. Keys without the scope `needs` see no form.
 * If a Problem says what somebody else made of a record (`now`), `onReload` shows that; a second press replaces it.
 */
export function Form({ title, label = title, fields, action, onSend, onReload, keeps = false, needs = "admin" }) {
  const id = useId();
  const form = useRef(null);
  const start = useRef(null);
  start.current ??= initialOf(fields);
  const [values, setValues] = useState(start.current);
  const [said, setSaid] = useState("");
  const [send, { busy, problem }] = useAction(async () => {
    setSaid("");
    await onSend(values, changedSince(start.current, values));
    setSaid("Done.");
    start.current = keeps ? values : initialOf(fields);
    setValues(start.current);
  });
  const { faults, rest } = placeFaults(problem, fields);
  useUnsaved(keeps !== "quietly" && Object.keys(changedSince(start.current, values)).length > 0);
  useEffect(() => form.current?.querySelector("[aria-invalid]")?.focus(), [problem]);
  if (!session.may(needs)) return null;
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  const change = (name) => (value) => setValues((known) => ({ ...known, [name]: value }));
  return html`<form class="stack" onSubmit=${submit} aria-label=${label} ref=${form}>
    ${title && html`<h2>${title}</h2>`}
    ${fields.map((field) => html`<${Field} field=${field} key=${field.name} id=${`${id}-${field.name}`} fault=${faults.get(field.name)}
      value=${values[field.name] ?? field.value ?? ""} onValue=${change(field.name)} />`)}
    <p class="row"><button class="primary" aria-disabled=${busy}>${action}</button> <span role="status" class="quiet">${said}</span></p>
    <${Trouble} problem=${rest} />
    ${problem?.now && onReload && html`<p class="row"><button type="button" onClick=${onReload}>Take theirs</button> <button class="danger">Replace theirs</button></p>`}
  </form>`;
}

function initialOf(fields) {
  return Object.fromEntries(fields.map(({ name, value, kind }) => [name, value ?? (kind === "check" ? false : "")]));
}

function changedSince(start, values) {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== (start[name] ?? "")));
}

/** The faults of a Problem by the names of their fields, and the Problem with those that fit no field. */
export function placeFaults(problem, fields) {
  const faults = new Map();
  const others = [];
  for (const fault of problem?.errors ?? []) {
    const field = fields.find((candidate) => isAt(fault.pointer, candidate));
    if (field === undefined || field.kind === "check") others.push(fault);
    else if (!faults.has(field.name)) faults.set(field.name, fault.detail);
  }
  const isPlaced = faults.size > 0 && others.length === 0;
  const message = isPlaced ? `Nothing was changed: see the marked ${faults.size === 1 ? "field" : "fields"}.` : problem?.message;
  const rest = problem && { message, errors: others };
  return { faults, rest };
}

function isAt(where, { name, pointer }) {
  if (pointer !== undefined) return where === pointer || where.startsWith(`${pointer}/`);
  return where.split("/").includes(name);
}

function Field({ field, id, value, fault, onValue }) {
  const { label, kind = "text", options = [], hint, required = false, placeholder } = field;
  const changed = (event) => onValue(event.target.value);
  if (kind === "check") {
    return html`<label class="check"><input type="checkbox" checked=${value} onChange=${(event) => onValue(event.target.checked)} /> ${label}</label>`;
  }
  const described = [hint && `${id}-hint`, fault && `${id}-fault`].filter(Boolean).join(" ") || undefined;
  const shared = { value, "aria-describedby": described, "aria-invalid": fault ? "true" : undefined };
  return html`<div><label>${label}
      ${kind === "select" && html`<select ...${shared} onChange=${changed}>${options.map(([name, title]) => html`<option value=${name} key=${name}>${title}</option>`)}</select>`}
      ${kind === "area" && html`<textarea rows="6" ...${shared} required=${required} placeholder=${placeholder} onInput=${changed} />`}
      ${!["select", "area"].includes(kind) && html`<input type=${kind} step=${kind === "number" ? "any" : undefined} min=${kind === "number" ? 0 : undefined} ...${shared} required=${required} autoComplete="off" placeholder=${placeholder} onInput=${changed} />`}
    </label>${fault && html`<p id=${`${id}-fault`} class="fault">${fault}</p>`}${hint && html`<p id=${`${id}-hint`} class="quiet">${hint}</p>`}</div>`;
}

/** Ask before the page is closed or loaded again while something is not saved, from the first keystroke on. */
export function useUnsaved(isDirty) {
  useLayoutEffect(() => {
    if (!isDirty) return undefined;
    const ask = (event) => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [isDirty]);
}

/** A button that asks again before it removes; the focus stays at what is asked, and goes to the page afterwards. */
export function Remove({ onRemove, label = "Remove", sureLabel = "Confirm removal", needs = "admin" }) {
  const [sure, setSure] = useState(null);
  const button = useRef(null);
  const [remove, { busy, problem }] = useAction(async () => {
    await onRemove();
    setSure(false);
    setTimeout(focusPage);
  });
  useEffect(() => {
    if (sure !== null) button.current?.focus();
  }, [sure]);
  if (!session.may(needs)) return null;
  return html`${sure
      ? html`<button type="button" class="danger" key="sure" ref=${button} aria-disabled=${busy} onClick=${remove}>${sureLabel}</button>
        <button type="button" key="keep" onClick=${() => setSure(false)}>Keep</button>`
      : html`<button type="button" key="ask" ref=${button} onClick=${() => setSure(true)}>${label}</button>`}
    <${Trouble} problem=${problem} />`;
}

/** The focus goes to what a person opens, and back to what opened it: the refs of both. */
export function useFocusBetween(isOpen) {
  const [opened, closed, before] = [useRef(null), useRef(null), useRef(isOpen)];
  useEffect(() => {
    if (before.current !== isOpen) (isOpen ? opened : closed).current?.focus();
    before.current = isOpen;
  }, [isOpen]);
  return [opened, closed];
}

/** Put the focus on the page if what had it is gone. */
export function focusPage() {
  if (document.activeElement === document.body) document.querySelector("main")?.focus();
}

/** A button that does one thing; what it returns is said beside it. */
export function Act({ label, onAct, primary = false, needs = "read" }) {
  const [said, setSaid] = useState("");
  const [act, { busy, problem }] = useAction(async () => {
    setSaid("");
    setSaid((await onAct()) ?? "");
  });
  if (!session.may(needs)) return null;
  return html`<button type="button" class=${primary ? "primary" : ""} aria-disabled=${busy} onClick=${act}>${label}</button>
    <span role="status" class="quiet">${said}</span><${Trouble} problem=${problem} />`;
}
