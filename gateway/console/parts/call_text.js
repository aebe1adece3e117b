// The whole text of a call that people approve, with the lines of a diff in colours.

import { html } from "./parts.js";

const DIFF_BEGINS = /^changes to the present (?:file|note):$/;
const TONES = { "+": "added", "-": "removed", "@": "hunk" };

/** The lines of a call: {text, tone}; only lines below the heading of a diff have a tone. */
export function linesOf(text) {
  let inDiff = false;
  return text.split("\n").map((line) => {
    if (!line.startsWith("    ")) inDiff = DIFF_BEGINS.test(line);
    const mark = inDiff ? line.slice(4, 5) : "";
    return { text: line, tone: TONES[mark] ?? "" };
  });
}

export function CallText({ text, label }) {
  const lines = linesOf(text);
  return html`<pre class="command call" tabIndex="0" aria-label=${label}>${lines.map(
    ({ text: line, tone }, index) => html`<span class=${tone}>${line}${index < lines.length - 1 ? "\n" : ""}</span>`,
  )}</pre>`;
}
