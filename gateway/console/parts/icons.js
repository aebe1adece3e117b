// Icons: outlines on a grid of 24, in the colour of the text around them. They say nothing to screen readers.

import htm from "../vendor/htm.mjs";
import { h } from "../vendor/preact.mjs";

const html = htm.bind(h);

const OUTLINES = {
  home: "M4 11 12 4l8 7v9h-5v-6H9v6H4z",
  inbox: "M4 5h16v14H4zM4 14h5l1 2h4l1-2h5",
  check: "M4 12a8 8 0 1 0 16 0 8 8 0 1 0-16 0M8.5 12l2.5 2.5 4.5-5",
  job: "M4 6h16v12H4zM7 10l3 2-3 2M12 14h4",
  turn: "M5 5h9M5 12h14M5 19h6M18 5v.01M15 19v.01",
  send: "M4 12 20 4l-5 16-4-6z",
  stream: "M4 8c3-4 5 4 8 0s5 4 8 0M4 15c3-4 5 4 8 0s5 4 8 0",
  health: "M3 12h4l2-6 4 12 3-8 1 2h4",
  channel: "M4 5h16v10H11l-5 4v-4H4z",
  agent: "M6 9h12v9H6zM12 9V5M9.5 13v.01M14.5 13v.01M3 12v3M21 12v3",
  box: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  folder: "M3 6h6l2 2h10v11H3z",
  clock: "M4 12a8 8 0 1 0 16 0 8 8 0 1 0-16 0M12 7.5V12l3 2",
  memory: "M6 4h12v16l-6-4-6 4z",
  hook: "M9 12a3 3 0 1 0 0 6h6M12 6a3 3 0 1 1 4.5 2.6L14 13M9 15l3-6",
  key: "M4 15a4 4 0 1 0 8 0 4 4 0 1 0-8 0M11 12l8-8M16 7l3 3",
  chart: "M4 20h16M7 16v-5M12 16V6M17 16v-8",
  list: "M8 6h12M8 12h12M8 18h12M4 6v.01M4 12v.01M4 18v.01",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  clip: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l7-7",
  sun: "M8 12a4 4 0 1 0 8 0 4 4 0 1 0-8 0M12 3v2M12 19v2M3 12h2M19 12h2",
  person: "M8 8a4 4 0 1 0 8 0 4 4 0 1 0-8 0M4 20c1-5 15-5 16 0",
  web: "M4 12a8 8 0 1 0 16 0 8 8 0 1 0-16 0M4 12h16M12 4c4 4 4 12 0 16-4-4-4-12 0-16",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${OUTLINES[name] ?? OUTLINES.list} /></svg>`;
}

/** The letter and colour of a chat platform; conversations without one come over the API or this page. */
export function PlatformMark({ kind }) {
  if (!kind) return html`<span class="platform"><${Icon} name="web" /></span>`;
  return html`<span class=${`platform ${kind}`} aria-hidden="true">${kind.slice(0, 1).toUpperCase()}</span>`;
}

/** The mark of the product: a dovecote with two holes and a door. */
export function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <path class="wall" d="M16 3 3 12.5V30h26V12.5z" /><circle cx="10.8" cy="17" r="2.8" /><circle cx="21.2" cy="17" r="2.8" />
    <path class="door" d="M11 30v-3.5a5 5 0 0 1 10 0V30z" /></svg>`;
}
