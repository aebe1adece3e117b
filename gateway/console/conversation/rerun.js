// A person's message that can be edited and run again, and the switch between its versions.

import { call, session } from "../core/api.js";
import { useFocusBetween } from "../parts/forms.js";
import { html, Trouble, useAction } from "../parts/parts.js";
import { useState } from "../vendor/hooks.mjs";

/** `versions` are the turns of the message's versions, if it has several; `choose` shows another one. */
export function Rerun({ turn, text, versions, choose, mayRun }) {
  const [draft, setDraft] = useState(null);
  const [field, opener] = useFocusBetween(draft !== null);
  const [run, { busy, problem }] = useAction(async (edited) => {
    await call("POST", `turns/${encodeURIComponent(turn)}/rerun`, { body: { text: edited } });
    setDraft(null);
    choose(turn, true);
  });
  const at = versions.indexOf(turn);
  const isNewest = at < 0 || at === versions.length - 1;
  const submitted = (event) => {
    event.preventDefault();
    if (draft.trim() !== "") run(draft);
  };
  const leaveOnEscape = (event) => event.key === "Escape" && setDraft(null);
  if (draft !== null) {
    return html`<form class="rerun" onSubmit=${submitted} onKeyDown=${leaveOnEscape}>
      <label>Your message <textarea ref=${field} rows=${Math.min(8, draft.split("\n", 8).length + 1)} value=${draft} onInput=${(event) => setDraft(event.target.value)} /></label>
      <${Trouble} problem=${problem} />
      <p class="row"><button class="primary" aria-disabled=${busy} disabled=${draft.trim() === ""}>Run again</button>
        <button type="button" onClick=${() => setDraft(null)}>Cancel</button></p>
      <p class="quiet">The agent forgets what followed this message. You can still read it as an earlier version.</p>
    </form>`;
  }
  return html`<p class="rerun row">
    ${versions.length > 1 && html`<button type="button" aria-label="Earlier version" disabled=${at <= 0} onClick=${() => choose(versions[at - 1])}>‹</button>
      <span class="quiet" data-kind="version">${at + 1} / ${versions.length}</span>
      <button type="button" aria-label="Later version" disabled=${isNewest} onClick=${() => choose(versions[at + 1])}>›</button>`}
    ${isNewest && mayRun && session.may("chat") && html`<button type="button" ref=${opener} onClick=${() => setDraft(text)}>Edit and run again</button>`}
  </p>`;
}
