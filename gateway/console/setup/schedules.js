// Schedules: messages and reminders at a time.

import { call, Problem } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Act, Form, Remove } from "../parts/forms.js";
import { Badge, Empty, html, Moment, Trouble, useGrowing } from "../parts/parts.js";
import { momentOf } from "./wall_time.js";

const RECORDS = "accounts/me/schedules";
const EVERY = 10_000;

export function View() {
  const { items, more, busy, problem, refresh } = useGrowing(RECORDS, EVERY);
  const add = async ({ conversation, text, kind, when, value, timezone }) => {
    const time = when === "at" ? onceAt(value, timezone.trim()) : value.trim();
    await call("POST", RECORDS, { body: { conversation: conversation.trim(), text, kind, [when]: time, timezone: timezone.trim() } });
    await refresh();
  };
  const fields = [
    { name: "conversation", label: "Conversation", required: true, placeholder: "weekly-report", hint: "Its id, or a name of your own; a new name makes a new conversation." },
    { name: "text", label: "Text", kind: "area", required: true },
    { name: "kind", label: "Does", kind: "select", value: "turn", options: [["turn", "sends the text to the agent"], ["reminder", "shows the text as a reminder"]] },
    { name: "when", label: "When", kind: "select", value: "every", options: [["every", "again and again, every …"], ["cron", "by a cron expression"], ["at", "once, at …"]] },
    { name: "value", label: "Time", required: true, placeholder: "P1D", hint: "A duration such as PT1H or P7D; five cron fields such as 0 9 * * 1; or a time such as 2030-01-31 09:00." },
    { name: "timezone", label: "Time zone", value: Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC" },
  ];
  return html`<section class="view narrow">
    <h1>Schedules</h1>
    <p class="lead">What starts by itself. People also make schedules with <code>/schedule</code> and <code>/remind</code>, and agents with their tools.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${items?.length === 0 && html`<${Empty} icon="clock" title="No schedule yet">Add one below.</${Empty}>`}
    ${items?.length > 0 && html`<ul class="rows">${items.map((one) => html`<${Schedule} schedule=${one} refresh=${refresh} key=${one.id} />`)}</ul>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
    <${Form} title="Add a schedule" fields=${fields} action="Add" onSend=${add} needs="chat" />
  </section>`;
}

function onceAt(value, zone) {
  const moment = momentOf(value, zone);
  if (moment === null) throw new Problem({ title: `${value} is no time of the zone ${zone}: write it as 2030-01-31 09:00` });
  return moment.toISOString();
}

function Schedule({ schedule, refresh }) {
  const path = `${RECORDS}/${schedule.id}`;
  const pause = async () => {
    await call("PATCH", path, { body: { paused: !schedule.paused } });
    await refresh();
  };
  const run = async () => {
    await call("POST", `${path}/run`);
    await refresh();
    return "Started.";
  };
  const rule = schedule.cron ?? schedule.every ?? "once";
  return html`<li class="entry" data-schedule=${schedule.id}><header><h2 class="wrap">${schedule.text.slice(0, 120)}</h2> <${Badge} state=${schedule.state} /></header>
    <p class="quiet">${rule} (${schedule.timezone}) · next ${schedule.next_at ? html`<${Moment} time=${schedule.next_at} />` : "never"}
      · ${schedule.fired} times so far · <a href=${addressOf("inbox", schedule.conversation)}>conversation</a> ${schedule.note}</p>
    <p class="row"><${Act} label="Run now" needs="chat" onAct=${run} /><${Act} label=${schedule.paused ? "Resume" : "Pause"} needs="chat" onAct=${pause} />
      <${Remove} needs="chat" onRemove=${() => call("DELETE", path).then(refresh)} /></p></li>`;
}
