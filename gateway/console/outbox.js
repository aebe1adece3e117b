// What was typed and is not yet in the stream. Each message has an id of its own that makes sending it
// again harmless, so after a reconnection whatever was not accepted simply goes out once more.

const LARGEST_FRAME = 48_000; // bytes; larger messages go by HTTP, which takes more

/** `send(frame)` says whether it went out; `post(path, body, id)` answers `{turnId, conversationId}`. */
export class Outbox {
  constructor({ send, post, newId, onAccepted, onChange }) {
    Object.assign(this, { send, post, newId, onAccepted, onChange });
    this.letters = new Map();
  }

  /** Say something in a conversation (an id, or a new name with the agent that shall answer). */
  add({ conversation, text, agent, isNew = false }) {
    const id = this.newId();
    this.letters.set(id, { id, conversation, text, agent, isNew, state: "sending", problem: "" });
    this.dispatch(id);
    this.onChange();
    return id;
  }

  /** Letters of one conversation, in the order in which they were typed. */
  of(conversation) {
    return [...this.letters.values()].filter((letter) => letter.conversation === conversation);
  }

  /** Send whatever was not accepted again: the connection is back. */
  flush() {
    for (const letter of this.letters.values()) if (letter.state === "sending") this.dispatch(letter.id);
  }

  /** The stream shows the message itself: its letter is not needed any more. */
  arrived(isKnown) {
    for (const letter of this.letters.values()) {
      if (letter.state === "accepted" && isKnown(letter.turn)) this.letters.delete(letter.id);
    }
  }

  /** Try a refused letter once more. */
  retry(id) {
    this.change(id, { state: "sending", problem: "" });
    this.dispatch(id);
  }

  /** Give a letter up. */
  discard(id) {
    this.letters.delete(id);
    this.onChange();
  }

  /** Take an answer of the gateway in; says whether it belonged to a letter. */
  answered(frame) {
    const letter = this.letters.get(frame.id);
    if (!letter) return false;
    if (frame.type === "accepted") this.accept(letter, frame.turn, frame.conversation);
    else this.change(letter.id, { state: "refused", problem: frame.detail || frame.code });
    return true;
  }

  dispatch(id) {
    const { conversation, text, agent } = this.letters.get(id);
    const frame = { type: "send", conversation, text, id, ...(agent ? { agent } : {}) };
    const size = new TextEncoder().encode(JSON.stringify(frame)).length;
    if (size > LARGEST_FRAME) this.mail(this.letters.get(id));
    else this.send(frame);
  }

  mail(letter) {
    const { conversation, text, agent, isNew, id } = letter;
    const [path, body] = isNew
      ? [`agents/${agent}/turns`, { conversation, input: text }]
      : [`conversations/${conversation}/messages`, { text }];
    this.post(path, body, id).then(
      (answer) => this.accept(letter, answer.turnId, answer.conversationId),
      (problem) => {
        const passing = problem.status === 0 || problem.status >= 500;
        this.change(id, passing ? {} : { state: "refused", problem: problem.message });
      },
    );
  }

  accept(letter, turn, conversation) {
    this.change(letter.id, { state: "accepted", turn, conversation });
    this.onAccepted(this.letters.get(letter.id), letter.conversation);
  }

  change(id, fields) {
    this.letters.set(id, { ...this.letters.get(id), ...fields });
    this.onChange();
  }
}
