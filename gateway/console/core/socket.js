// The WebSocket of this tab: it authenticates in the first frame, follows the watched threads,
// and reconnects by itself, continuing each thread after its last event.

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8_000;
const PING_EVERY = 20_000;
const SILENCE = 45_000;
const REFUSED = 4401;

/** How long to wait before attempt number `failures` (1, 2, …), in milliseconds; `chance` is in [0, 1). */
export function pause(failures, chance) {
  const ceiling = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** (failures - 1));
  return Math.round(ceiling * (0.5 + chance / 2));
}

/**
 * `state` is connecting, connected, waiting (with `retryAt`), or stopped; `onChange` is called on changes.
 * `onRefused` is called when the gateway refuses the key, `onAnswer` with responses to sent frames
 * (it returns whether it handled one). `outside` contains what tests replace.
 */
export class Socket {
  constructor({ address, key, onChange, onRefused, onAnswer, outside = browser() }) {
    this.address = address;
    this.key = key;
    this.onChange = onChange;
    this.onRefused = onRefused;
    this.onAnswer = onAnswer;
    this.outside = outside;
    this.threads = new Map();
    this.state = "stopped";
    this.retryAt = null;
    this.failures = 0;
    this.wire = null;
    this.heard = 0;
    this.timers = new Map();
  }

  /** Open the connection and reconnect until `stop`. */
  start() {
    this.become("connecting");
    const wire = new this.outside.WebSocket(this.address);
    this.wire = wire;
    wire.onopen = () => this.opened(wire);
    wire.onmessage = (message) => this.heardFrom(wire, message.data);
    wire.onclose = (close) => this.closed(wire, close.code);
    this.heard = this.outside.now();
    this.later("silence", SILENCE, () => this.listenFor(wire));
  }

  /** Close the connection and do not reconnect. */
  stop() {
    this.timers.forEach((timer) => this.outside.clearTimeout(timer));
    this.timers.clear();
    const wire = this.wire;
    this.wire = null;
    wire?.close();
    this.become("stopped");
  }

  /** Reconnect immediately. */
  hurry() {
    if (this.state !== "waiting") return;
    this.cancel("retry");
    this.start();
  }

  /** Follow a thread now and after every reconnection. */
  watch(thread) {
    this.threads.set(thread.conversation, thread);
    if (this.state === "connected") this.send(thread.continuation());
  }

  /** Unsubscribe from a thread; it keeps its cursor. */
  leave(thread) {
    if (!this.threads.delete(thread.conversation)) return;
    thread.cut();
    this.send({ type: "unsubscribe", conversation: thread.conversation });
  }

  /** Send a frame if connected; returns whether it was sent. */
  send(frame) {
    if (this.state !== "connected") return false;
    this.wire.send(JSON.stringify(frame));
    return true;
  }

  opened(wire) {
    if (wire !== this.wire) return;
    wire.send(JSON.stringify({ type: "auth", key: this.key() }));
    wire.send(JSON.stringify({ type: "ping" })); // the answer shows that the key was taken
  }

  heardFrom(wire, text) {
    if (wire !== this.wire) return;
    this.heard = this.outside.now();
    const frame = JSON.parse(text);
    if (this.state === "connecting" && frame.type !== "error") this.welcome();
    const answers = frame.type === "accepted" || frame.type === "error";
    if (frame.type === "pong" || (answers && this.onAnswer(frame))) return;
    this.route(frame);
  }

  welcome() {
    this.failures = 0;
    this.become("connected");
    this.threads.forEach((thread) => this.send(thread.continuation()));
    this.later("ping", PING_EVERY, () => this.ping());
  }

  route(frame) {
    const conversation = frame.conversation ?? frame.items?.[0]?.conversation;
    const only = this.threads.size === 1 ? this.threads.values().next().value : null;
    const thread = conversation === undefined ? only : this.threads.get(conversation);
    if (frame.type === "error") thread?.refuse?.(frame);
    else thread?.take(frame);
  }

  ping() {
    this.send({ type: "ping" });
    this.later("ping", PING_EVERY, () => this.ping());
  }

  /** Close a connection over which nothing arrives, not even a pong. */
  listenFor(wire) {
    if (wire !== this.wire) return;
    const silent = this.outside.now() - this.heard;
    if (silent < SILENCE) this.later("silence", SILENCE - silent, () => this.listenFor(wire));
    else this.closed(wire, 1006);
  }

  closed(wire, code) {
    if (wire !== this.wire) return;
    wire.onclose = null;
    wire.close();
    this.wire = null;
    this.cancel("ping");
    this.cancel("silence");
    this.threads.forEach((thread) => thread.cut());
    if (code === REFUSED) this.refuse();
    else this.comeBack();
  }

  refuse() {
    this.become("stopped");
    this.onRefused();
  }

  comeBack() {
    this.failures += 1;
    const wait = pause(this.failures, this.outside.random());
    this.retryAt = this.outside.now() + wait;
    this.become("waiting");
    this.later("retry", wait, () => this.start());
  }

  become(state) {
    this.state = state;
    if (state !== "waiting") this.retryAt = null;
    this.onChange();
  }

  later(name, wait, action) {
    this.cancel(name);
    this.timers.set(name, this.outside.setTimeout(action, wait));
  }

  cancel(name) {
    this.outside.clearTimeout(this.timers.get(name));
    this.timers.delete(name);
  }
}

function browser() {
  return {
    WebSocket,
    now: () => Date.now(),
    random: () => Math.random(),
    setTimeout: (action, wait) => setTimeout(action, wait),
    clearTimeout: (timer) => clearTimeout(timer),
  };
}
