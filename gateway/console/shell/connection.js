// The state of the connection to the gateway.

import { html, useThread } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";

const IDLE = { listen: () => () => {}, version: 0 };

/** "Caught up" stands only after the gateway sent `caught_up`. */
export function Connection({ live }) {
  useThread(live.shown ?? IDLE);
  const { state, retryAt } = live.socket;
  const [tone, words] = connectionWords(state, live.shown);
  return html`<p class=${`connection ${tone}`}>
    <span role="status" data-connection=${words}>${words}</span>
    ${state === "waiting" && html`<${Countdown} until=${retryAt} /> <button type="button" onClick=${() => live.socket.hurry()}>Now</button>`}
  </p>`;
}

function connectionWords(state, thread) {
  if (state === "connecting") return ["busy", "Connecting"];
  if (state === "waiting") return ["bad", "Reconnecting"];
  if (state === "stopped") return ["bad", "Not connected"];
  if (!thread || (thread.isRefused && !thread.place.caughtUp)) return ["ok", "Connected"]; // its page shows the refusal
  return thread.place.caughtUp ? ["ok", "Caught up"] : ["busy", "Catching up"];
}

/** The seconds until a time; nothing after it. */
export function Countdown({ until }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.ceil((until - now) / 1000);
  return seconds > 0 ? html`<span class="quiet">in ${seconds} s</span>` : null;
}
