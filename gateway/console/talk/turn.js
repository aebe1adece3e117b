// One turn of a conversation: what was asked, the steps, the answer, and what it took.

import { call } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { html, span } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";
import { Item } from "./cards.js";

const KNOWN_USAGE = new Map();
const MOST_KNOWN = 500;

export function Turn({ group, turn }) {
  if (group.turn === undefined) return group.items.map((item) => html`<${Item} item=${item} key=${item.key} />`);
  return html`<section class="turn" data-turn=${group.turn}>
    ${group.items.map((item) => html`<${Item} item=${item} key=${item.key} />`)}
    ${turn?.endedAt && html`<${TurnFoot} id=${group.turn} turn=${turn} items=${group.items} />`}
  </section>`;
}

/** Steps, duration and tokens of a turn that ended. */
function TurnFoot({ id, turn, items }) {
  const usage = useUsage(id);
  const steps = items.filter(({ kind }) => kind === "tool").length;
  const facts = [
    steps > 0 && `${steps} ${steps === 1 ? "step" : "steps"}`,
    turn.startedAt && span(Date.parse(turn.endedAt) - Date.parse(turn.startedAt)),
    usage && `${(usage.input_tokens + usage.output_tokens).toLocaleString()} tokens`,
  ].filter(Boolean);
  return html`<p class="turnfoot quiet" data-kind="turn">${facts.join(" · ")} <a href=${addressOf("turns", id)}>Trace</a></p>`;
}

function useUsage(id) {
  const [usage, setUsage] = useState(KNOWN_USAGE.get(id) ?? null);
  useEffect(() => {
    if (KNOWN_USAGE.has(id)) return;
    call("GET", `status/${encodeURIComponent(id)}`).then(
      (status) => {
        if (KNOWN_USAGE.size >= MOST_KNOWN) KNOWN_USAGE.clear();
        KNOWN_USAGE.set(id, status.usage);
        setUsage(status.usage);
      },
      () => {}, // the foot shows what it knows
    );
  }, [id]);
  return usage;
}
