// Messages that were typed and are not in the stream yet. The id of each makes a repeated send
// idempotent, so messages that were not accepted are sent again after a reconnection.

const LARGEST_FRAME = 48_000; // bytes; larger messages go by HTTP, which takes more

/** `send(frame)` returns whether it was sent; `post(path, body, id)` returns `{turnId, conversationId}`.
 *  `isShown(conversation, turn)` returns whether the stream contains a turn. */
export class Outbox {
  constructor({ send, post, newId, onAccepted, onChange, isShown = () => false }) {
    Object.assign(this, { send, post, newId, onAccepted, onChange, isShown });
    this.letters = new Map();
  }

  /** Send a message to a conversation (an id, or a new name with the agent that answers). */
  add({ conversation, text, agent, attachments = [], isNew = false, asOperator = false }) {
    const id = this.newId();
    this.letters.set(id, { id, conversation, text, agent, attachments, isNew, asOperator, state: "sending", problem: "" });
    this.dispatch(id);
    this.onChange();
    return id;
  }

  /** The unsent messages of one conversation, in the order in which they were typed. */
  of(conversation) {
    return [...this.letters.values()].filter((letter) => letter.conversation === conversation);
  }

  /** Send the messages again that were not accepted, after a reconnection. */
  flush() {
    for (const letter of this.letters.values()) if (letter.state === "sending") this.dispatch(letter.id);
  }

  /** Remove a message that the stream contains. */
  arrived(isKnown) {
    for (const letter of this.letters.values()) {
      if (letter.state === "accepted" && isKnown(letter.turn)) this.letters.delete(letter.id);
    }
  }

  /** Send a refused message again. */
  retry(id) {
    this.change(id, { state: "sending", problem: "" });
    this.dispatch(id);
  }

  /** Discard an unsent message. */
  discard(id) {
    this.letters.delete(id);
    this.onChange();
  }

  /** Handle a response of the gateway; returns whether it belonged to an unsent message. */
  answered(frame) {
    const letter = this.letters.get(frame.id);
    if (!letter) return false;
    if (frame.type === "accepted") this.accept(letter, frame.turn, frame.conversation);
    else this.change(letter.id, { state: "refused", problem: frame.detail || frame.code });
    return true;
  }

  dispatch(id) {
    const { conversation, text, agent, attachments, asOperator } = this.letters.get(id);
    const frame = { type: "send", conversation, text, id, ...(agent ? { agent } : {}) };
    const size = new TextEncoder().encode(JSON.stringify(frame)).length;
    if (size > LARGEST_FRAME || attachments.length > 0 || asOperator) this.mail(this.letters.get(id));
    else this.send(frame);
  }

  mail(letter) {
    const { conversation, text, agent, attachments, isNew, asOperator, id } = letter;
    const files = attachments.length > 0 ? { attachments } : {};
    const [path, body] = isNew
      ? [`agents/${agent}/turns`, { conversation, input: text, ...files }]
      : [`conversations/${conversation}/messages`, { text, ...files, ...(asOperator ? { as: "operator" } : {}) }];
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
    // A command has no turn and is no message. The stream may have been faster than this response.
    if (!turn || this.isShown(conversation, turn)) this.discard(letter.id);
  }

  change(id, fields) {
    this.letters.set(id, { ...this.letters.get(id), ...fields });
    this.onChange();
  }
}
