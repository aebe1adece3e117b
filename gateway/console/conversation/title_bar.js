// The title of a conversation: where it is, and what can be done with it.

import { call, session } from "../core/api.js";
import { Remove, useFocusBetween } from "../parts/forms.js";
import { changeRecord, FIELDS } from "../parts/record_changes.js";
import { PlatformMark } from "../parts/icons.js";
import { Badge, html, Trouble, useAction } from "../parts/parts.js";
import { useRef, useState } from "../vendor/hooks.mjs";
import { nameOf, placeOf } from "./names.js";

export function TitleBar({ id, talk, refresh }) {
  const [wanted, setWanted] = useState(null);
  const [field, opener] = useFocusBetween(wanted !== null);
  if (talk === null) return html`<header class="title" />`;
  if (wanted !== null) return html`<${Rename} id=${id} talk=${talk} wanted=${wanted} setWanted=${setWanted} refresh=${refresh} field=${field} />`;
  const remove = async () => {
    await call("DELETE", `conversations/${encodeURIComponent(id)}`);
    location.hash = "#/inbox";
  };
  return html`<header class="title">
    <a class="back button" href="#/inbox" aria-label="← Conversations">←</a>
    <${PlatformMark} kind=${talk.kind} />
    <div class="names"><h1 class="clip">${nameOf(talk)}</h1>${placeOf(talk) && html`<p class="quiet clip" title=${talk.address?.room}>${placeOf(talk)}</p>`}</div>
    ${talk.handover && html`<${Badge} state="with a person" />`}
    <div class="actions">
      ${session.may("chat") && html`<${Handover} id=${id} talk=${talk} refresh=${refresh} />
        <button type="button" ref=${opener} onClick=${() => setWanted(talk.title ?? "")}>Rename</button>`}
      <${Remove} label="Delete" sureLabel="Delete for good" onRemove=${remove} />
    </div>
  </header>`;
}

/** A title that somebody else gave meanwhile is shown first; pressed again, the button replaces it. */
function Rename({ id, talk, wanted, setWanted, refresh, field }) {
  const seen = useRef(talk);
  const [rename, { busy, problem }] = useAction(async (title) => {
    try {
      await changeRecord(`conversations/${encodeURIComponent(id)}`, seen.current, { title: title.trim() || null }, FIELDS);
    } catch (refusal) {
      seen.current = refusal.now ?? seen.current;
      throw refusal;
    }
    setWanted(null);
    await refresh();
  });
  const submitted = (event) => {
    event.preventDefault();
    rename(wanted);
  };
  const leaveOnEscape = (event) => event.key === "Escape" && setWanted(null);
  return html`<form class="title" onSubmit=${submitted} onKeyDown=${leaveOnEscape}>
    <label class="unseen" for="title">Title</label>
    <input id="title" ref=${field} value=${wanted} maxLength="200" placeholder="The start of the first message" onInput=${(event) => setWanted(event.target.value)} />
    <button class="primary" aria-disabled=${busy}>Save</button>
    <button type="button" onClick=${() => setWanted(null)}>Cancel</button>
    <${Trouble} problem=${problem} />
  </form>`;
}

/** While a person handles a conversation its agent is silent. */
function Handover({ id, talk, refresh }) {
  const [hand, { busy, problem }] = useAction(async (state) => {
    await call("POST", `conversations/${encodeURIComponent(id)}/handover`, { body: { state } });
    await refresh();
  });
  return html`${talk.handover
      ? html`<button type="button" aria-disabled=${busy} onClick=${() => hand("agent")}>Give back</button>`
      : html`<button type="button" aria-disabled=${busy} onClick=${() => hand("human")}>Take over</button>`}
    <${Trouble} problem=${problem} />`;
}
