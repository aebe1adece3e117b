// Charts: bars over the last hours, as SVG that follows the theme, and as a sentence for those who do not see it.

import { html } from "./parts.js";

const HOUR = 3_600_000;

/** How many of some times fall into each of the last `hours` hours, the present one last. */
export function perHour(times, now, hours = 24) {
  const counts = new Array(hours).fill(0);
  for (const time of times) {
    const ago = Math.floor(now / HOUR) - Math.floor(Date.parse(time) / HOUR);
    if (ago >= 0 && ago < hours) counts[hours - 1 - ago] += 1;
  }
  return counts;
}

/** Bars of counts; `bad` holds the part of each that is drawn in the colour of failures. */
export function Bars({ title, counts, bad = [], unit }) {
  const top = Math.max(1, ...counts);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const width = 100 / counts.length;
  const bar = (count, index, tone) => count > 0 && html`<rect class=${`bar ${tone}`} key=${`${tone}${index}`} x=${index * width + width * 0.12} width=${width * 0.76}
    y=${100 - (count / top) * 96} height=${(count / top) * 96} rx="0.6" />`;
  return html`<figure class="chart">
    <figcaption><span>${title}</span> <span class="quiet">${total.toLocaleString()} ${unit}</span></figcaption>
    <svg viewBox="0 0 100 101" preserveAspectRatio="none" role="img" aria-label=${`${title}: ${total} ${unit} in the last ${counts.length} hours, at most ${top} in one hour`}>
      ${counts.map((count, index) => bar(count, index, ""))}${bad.map((count, index) => bar(count, index, "bad"))}
      <line class="axis" x1="0" x2="100" y1="100.5" y2="100.5" /></svg>
    <p class="hours" aria-hidden="true"><span>24 h ago</span><span>now</span></p>
  </figure>`;
}
