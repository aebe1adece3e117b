// One conversation with its live stream, and a new one.

import { call, list, session, word } from "../core/api.js";
import { mergeBranches } from "../core/branches.js";
import { markRead } from "../core/choices.js";
import { html, Trouble, usePolled, useThread } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";
import { Composer } from "./composer.js";
import { Announcer, Holes, Working } from "./status.js";
import { Letters, Stream } from "./stream.js";
import { TitleBar } from "./title_bar.js";

const STATE_EVERY = 10_000;
const SHELL = ["!ls -la", "!&sleep 5; echo done", "/help"];
const SUGGESTIONS = ["What can you do?", "List the files of your workspace.", "/help"];

export function NewConversation({ live, wanted }) {
  const [name, setName] = useState(() => `console-${word(6)}`);
  const [agent, setAgent] = useState(wanted ?? "");
  const { value: agents, problem } = usePolled(() => list("accounts/me/agents"), 0);
  const chosen = agents?.find((one) => one.name === agent) ?? agents?.find((one) => one.name === "default") ?? agents?.[0];
  const isShell = chosen?.config?.model === "builtin:shell";
  const send = ({ text, attachments }) =>
    live.outbox.add({ conversation: name.trim() || `console-${word(6)}`, text, attachments, agent: chosen?.name, isNew: true });
  return html`<div class="stream"><div class="view begin">
      <p class="back"><a href="#/inbox">← Conversations</a></p>
      <h1>New conversation</h1>
      <${Trouble} problem=${problem?.status === 403 ? null : problem} />
      ${agents?.length > 1 && html`<label>Agent <select value=${chosen?.name} onChange=${(event) => setAgent(event.target.value)}>
        ${agents.map((one) => html`<option value=${one.name} key=${one.id}>${one.name}</option>`)}
      </select></label>`}
      ${isShell && html`<p class="quiet">The shell agent runs the text after an exclamation mark: <code>!echo hi</code> runs now, <code>!&sleep 5; echo done</code> in the background.</p>`}
      ${session.may("chat") && html`<p class="suggestions">${(isShell ? SHELL : SUGGESTIONS).map((text) => html`<button type="button" key=${text} onClick=${() => send({ text })}>${text}</button>`)}</p>
      <details><summary>Name</summary>
        <label>Name for programs <input value=${name} maxLength="100" onInput=${(event) => setName(event.target.value)} /></label></details>`}
      <${Letters} letters=${live.outbox.of(name)} outbox=${live.outbox} />
    </div></div>
    <${Composer} onSend=${send} />`;
}

export function Conversation({ id, live }) {
  const thread = live.thread(id);
  useThread(thread);
  useEffect(() => live.follow(thread), [thread]);
  const state = usePolled(() => call("GET", `conversations/${encodeURIComponent(id)}`), STATE_EVERY, [id]);
  const items = thread.timeline.list();
  const branches = mergeBranches(state.value?.branches ?? [], [...thread.timeline.branches.values()]);
  const newest = items.findLast((item) => item.time)?.time;
  useEffect(() => {
    if (newest && !document.hidden) markRead(id, new Date(Math.max(Date.parse(newest), Date.parse(state.value?.active_at ?? newest))).toISOString());
  }, [id, newest, state.value?.active_at]);
  const isOurs = Boolean(state.value?.handover);
  const send = ({ text, attachments }) => live.outbox.add({ conversation: id, text, attachments, asOperator: isOurs });
  return html`<${TitleBar} id=${id} talk=${state.value} refresh=${state.refresh} />
    <${Holes} thread=${thread} live=${live} />
    <${Stream} items=${items} branches=${branches} thread=${thread} letters=${live.outbox.of(id)} live=${live} />
    <${Announcer} items=${items} live=${thread.place.caughtUp} />
    <${Working} open=${thread.timeline.open()} />
    <${Composer} onSend=${send} hint=${isOurs ? "You handle this conversation: what you write goes to the people in it." : ""} filesAllowed=${!isOurs} />`;
}
