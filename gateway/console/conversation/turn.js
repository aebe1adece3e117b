// One turn of a conversation: what was asked, the steps, the answer, and what it took.

import { call } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { html, span } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";
import { Item } from "./cards.js";
import { Rerun } from "./rerun.js";

const KNOWN_STATES = new Map();
const MOST_KNOWN = 500;

export function Turn({ group, turn, versions = [], choose, mayRun, isTakenBack, caughtUp }) {
  if (group.turn === undefined) return group.items.map((item) => html`<${Item} item=${item} key=${item.key} />`);
  const isFromSnapshot = turn === undefined && group.items.some(({ restored }) => restored);
  const asked = group.items.filter(({ kind, role }) => kind === "message" && role === "user");
  const hasEnded = turn === undefined ? isFromSnapshot : Boolean(turn.endedAt);
  return html`<section class="turn" data-turn=${group.turn} data-taken-back=${isTakenBack}>
    ${isTakenBack && html`<p class="note">Taken back: the agent no longer knows of this.</p>`}
    ${group.items.map((item) => html`<${Item} item=${item} key=${item.key} />
      ${asked.length === 1 && item === asked[0] && html`<${Rerun} key=${`rerun ${item.key}`} turn=${group.turn} text=${item.text} versions=${versions} choose=${choose} mayRun=${mayRun && hasEnded && !isTakenBack} />`}`)}
    ${(turn?.endedAt || isFromSnapshot) && html`<${TurnFoot} id=${group.turn} items=${group.items} caughtUp=${caughtUp} />`}
  </section>`;
}

/** Steps, duration and tokens of a turn that ended; turns that only pass by while the history loads are not asked about. */
function TurnFoot({ id, items, caughtUp }) {
  const { usage, started_at: begin, finished_at: end } = useStatus(id, caughtUp) ?? {};
  const steps = items.filter(({ kind }) => kind === "tool").length;
  const facts = [
    steps > 0 && `${steps} ${steps === 1 ? "step" : "steps"}`,
    begin && end && span(Date.parse(end) - Date.parse(begin)),
    usage && `${(usage.input_tokens + usage.output_tokens).toLocaleString()} tokens`,
  ].filter(Boolean);
  return html`<p class="turnfoot quiet" data-kind="turn">${facts.join(" · ")} <a href=${addressOf("turns", id)}>Trace</a></p>`;
}

function useStatus(id, caughtUp) {
  const [status, setStatus] = useState(KNOWN_STATES.get(id) ?? null);
  useEffect(() => {
    if (!caughtUp || status !== null) return;
    call("GET", `status/${encodeURIComponent(id)}`).then(
      ({ usage, started_at, finished_at }) => {
        const found = { usage, started_at, finished_at };
        if (KNOWN_STATES.size >= MOST_KNOWN) KNOWN_STATES.clear();
        KNOWN_STATES.set(id, found);
        setStatus(found);
      },
      () => {}, // the foot shows what it knows
    );
  }, [id, caughtUp]);
  return status;
}
