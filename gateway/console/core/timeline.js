// The timeline of a conversation: events and snapshots in, items to render out. No DOM, no network.
//
// An item is replaced, never changed, so that rendered items can be compared by identity.

const ENDED = { "turn.completed": "completed", "turn.failed": "failed", "turn.cancelled": "cancelled" };
const OPEN_TURNS = new Set(["queued", "running", "retrying", "waiting"]);

/** The ordered items of one conversation: message, draft, tool, approval, job, retry and note. */
export class Timeline {
  constructor() {
    this.items = new Map(); // in the order in which they are shown
    this.turns = new Map(); // turn → {state, attempt}
    this.authors = new Map(); // turn → who asked
    this.calls = new Keys(); // tool calls that have not ended
    this.drafts = new Keys(); // messages that are being said
    this.questions = new Keys(); // approvals that wait
    this.reactions = new Map(); // key of a message → the reactions to it
    this.branches = new Map(); // first turn → {turn, turns, rerun}: what the agent no longer knows of
  }

  /** The items to render, first to last; drafts come after complete messages. */
  list() {
    const items = [...this.items.values()];
    const drafts = items.filter(({ kind }) => kind === "draft");
    return drafts.length === 0 ? items : [...items.filter(({ kind }) => kind !== "draft"), ...drafts];
  }

  /** Turns that have not ended, oldest first: [{turn, state}]. */
  open() {
    const entries = [...this.turns].filter(([, { state }]) => OPEN_TURNS.has(state));
    return entries.map(([turn, { state }]) => ({ turn, state }));
  }

  /** Add an event. */
  apply(event) {
    const [family] = event.type.split(".");
    if (event.type !== "turn.waiting") this.items.delete(`w:${event.turn}`);
    READERS[event.type]?.(this, event, event.data ?? {});
    if (family === "turn") this.followTurn(event, event.data ?? {});
  }

  /** Add a snapshot: messages that came with no event, and the states of jobs and approvals. */
  restore(snapshot) {
    for (const message of snapshot.messages ?? []) this.restoreMessage(message);
    for (const job of snapshot.jobs ?? []) this.restoreJob(job);
    for (const approval of snapshot.approvals ?? []) this.restoreApproval(approval);
  }

  restoreMessage(message) {
    const key = `m:${message.id}`;
    const known = this.items.get(key);
    if (known !== undefined) {
      if (known.authorName === undefined && message.author_name) this.put(key, { ...known, authorName: message.author_name });
      return;
    }
    this.put(key, { ...messageItem(message, message), time: message.created_at ?? message.time, restored: true });
  }

  restoreJob(job) {
    const id = job.resultId ?? job.id;
    const known = this.items.get(`j:${id}`);
    this.put(`j:${id}`, { kind: "job", ...known, ...jobFields(id, job), state: job.state ?? known?.state });
  }

  restoreApproval(approval) {
    const id = approval.approval ?? approval.id;
    const known = this.items.get(`a:${id}`);
    this.put(`a:${id}`, { kind: "approval", ...known, ...approvalFields(id, approval), state: approval.state ?? "pending" });
  }

  put(key, item) {
    const reactions = this.reactions.get(key);
    this.items.set(key, { ...item, key, ...(reactions && { reactions }) });
  }

  /** Move an event's item to the end, also when a snapshot added it earlier. */
  place(key, item) {
    if (this.items.get(key)?.restored) this.items.delete(key);
    this.put(key, item);
  }

  /** Remove the matching drafts of a turn. */
  dropDrafts(turn, fits) {
    for (const key of this.drafts.of(turn)) {
      if (!fits(this.items.get(key))) continue;
      this.items.delete(key);
      this.drafts.remove(turn, key);
    }
  }

  attempt(turn) {
    return this.turns.get(turn)?.attempt ?? 0;
  }

  followTurn(event, data) {
    const known = this.turns.get(event.turn) ?? { state: "queued", attempt: 0 };
    const attempt = Math.max(data.attempt ?? 0, known.attempt);
    if (event.type === "turn.restarted") this.supersede(event.turn, attempt);
    if (event.type !== "turn.retrying") this.items.delete(`r:${event.turn}`);
    const endedAt = event.type in ENDED ? event.time : known.endedAt;
    this.turns.set(event.turn, { state: turnState(event.type, known.state), attempt, endedAt });
    if (event.type in ENDED) this.close(event, data);
  }

  /**
   * Remove the drafts of an earlier attempt. Its complete messages and tool calls stay:
   * the next attempt continues after them, and ends the calls that were running.
   */
  supersede(turn, attempt) {
    this.dropDrafts(turn, (draft) => draft.attempt < attempt);
  }

  /** Remove a turn's drafts, running calls and open approvals after its end. */
  close(event, data) {
    this.dropDrafts(event.turn, () => true);
    for (const key of this.calls.take(event.turn)) this.put(key, { ...this.items.get(key), state: "unknown" });
    for (const key of this.questions.take(event.turn)) this.put(key, { ...this.items.get(key), state: "expired" });
    const state = ENDED[event.type];
    if (state === "completed") return;
    const text = state === "cancelled" ? "Cancelled." : `This turn failed. ${data.error ?? data.detail ?? ""}`.trim();
    const retry = state === "failed" ? event.turn : undefined;
    this.put(`x:${event.id}`, { kind: "note", tone: state, text, time: event.time, turn: event.turn, retry });
  }
}

/** Keys of items, by turn. */
class Keys {
  constructor() {
    this.byTurn = new Map();
  }

  of(turn) {
    return [...(this.byTurn.get(turn) ?? [])];
  }

  add(turn, key) {
    if (!this.byTurn.has(turn)) this.byTurn.set(turn, new Set());
    this.byTurn.get(turn).add(key);
  }

  remove(turn, key) {
    this.byTurn.get(turn)?.delete(key);
  }

  take(turn) {
    const keys = this.of(turn);
    this.byTurn.delete(turn);
    return keys;
  }
}

function turnState(type, known) {
  if (type in ENDED) return ENDED[type];
  if (type === "turn.queued" || type === "turn.undone") return known;
  if (type === "turn.retrying") return "retrying";
  return "running";
}

const MAX_LIVE_OUTPUT = 32 * 1024;

const READERS = {
  "turn.retrying": (timeline, event, data) => {
    timeline.dropDrafts(event.turn, () => true);
    const fields = { error: data.error ?? "", at: data.at, attempt: data.attempt ?? 0 };
    timeline.place(`r:${event.turn}`, { kind: "retry", ...fields, turn: event.turn, time: event.time });
  },
  "turn.waiting": (timeline, event, data) => {
    const text = `Still ${data.reason ?? "waiting"}…`;
    timeline.place(`w:${event.turn}`, { kind: "note", tone: "quiet", text, turn: event.turn, time: event.time });
  },
  "turn.undone": (timeline, event, data) => {
    timeline.branches.set(event.turn, { turn: event.turn, turns: data.turns ?? [event.turn], rerun: data.rerun });
  },
  "turn.queued": (timeline, _event, data) => {
    for (const [key, item] of timeline.items) {
      if (item.retry === data.retry_of && data.retry_of !== undefined) timeline.put(key, { ...item, retry: undefined });
    }
  },
  "message.received": (timeline, event, data) => {
    timeline.authors.set(event.turn, authorOf(data.author));
    const key = `m:${data.message ?? event.id}`;
    const authorName = data.author_name ?? timeline.items.get(key)?.authorName; // a deletion has no name
    timeline.place(key, { ...messageItem(event, { role: "user", ...data }), authorName, time: event.time });
  },
  "message.delta": (timeline, event, data) => takeDelta(timeline, event, data),
  "message.completed": (timeline, event, data) => {
    timeline.dropDrafts(event.turn, (draft) => draft.message === data.message || data.message === undefined);
    const attempt = data.attempt ?? timeline.attempt(event.turn);
    timeline.place(`m:${data.message ?? event.id}`, { ...messageItem(event, data), attempt, time: event.time });
  },
  "message.edited": (timeline, _event, data) => {
    const known = timeline.items.get(`m:${data.message}`);
    if (known) timeline.put(known.key, { ...known, text: data.text });
  },
  "message.reacted": (timeline, event, data) => {
    const key = `m:${data.message}`;
    if (!data.message) return addNote(timeline, event, `The agent reacted with ${data.emoji} to an earlier message of the room.`, { turn: event.turn });
    const known = timeline.reactions.get(key) ?? [];
    if (known.some(({ emoji, by }) => emoji === data.emoji && by === data.by)) return;
    timeline.reactions.set(key, [...known, { emoji: data.emoji, name: data.name ?? "", by: data.by }]);
    if (timeline.items.has(key)) timeline.put(key, timeline.items.get(key));
  },
  "message.deleted": (timeline, _event, data) => timeline.items.delete(`m:${data.message}`),
  "tool.called": (timeline, event, data) => {
    const key = `t:${event.turn}:${data.call ?? event.id}`;
    if (timeline.items.get(key)?.state === "done") return;
    timeline.put(key, {
      kind: "tool", state: "running", name: data.name, args: data.args ?? {}, call: data.call, turn: event.turn,
      attempt: data.attempt ?? timeline.attempt(event.turn), time: event.time,
    });
    timeline.calls.add(event.turn, key);
  },
  "tool.delta": (timeline, event, data) => {
    const key = `t:${event.turn}:${data.call}`;
    const known = timeline.items.get(key);
    if (known?.state !== "running") return;
    timeline.put(key, { ...known, output: `${known.output ?? ""}${data.text ?? ""}`.slice(-MAX_LIVE_OUTPUT) });
  },
  "tool.completed": (timeline, event, data) => endCall(timeline, event, data),
  "approval.requested": requestApproval,
  "question.requested": (timeline, event, data) => requestApproval(timeline, event, { ...data, kind: "question" }),
  "question.answered": (timeline, event, data) => {
    const known = timeline.items.get(`a:${data.approval}`) ?? { kind: "approval", ...approvalFields(data.approval, { ...data, kind: "question" }) };
    timeline.questions.remove(event.turn, `a:${data.approval}`);
    const state = data.declined ? "denied" : "answered";
    timeline.put(`a:${data.approval}`, { ...known, state, by: deciderOf(data), comment: data.answer ?? data.comment });
  },
  "approval.resolved": (timeline, event, data) => {
    const known = timeline.items.get(`a:${data.approval}`) ?? { kind: "approval", ...approvalFields(data.approval, data) };
    timeline.questions.remove(event.turn, `a:${data.approval}`);
    timeline.put(`a:${data.approval}`, { ...known, state: decisionOf(data), by: deciderOf(data), comment: data.comment });
  },
  "approval.expired": expireApproval,
  "question.expired": expireApproval,
  "job.started": (timeline, event, data) => followJob(timeline, event, data, "running"),
  "job.progress": (timeline, event, data) => followJob(timeline, event, data, "running"),
  "job.completed": (timeline, event, data) => followJob(timeline, event, data, "completed"),
  "job.failed": (timeline, event, data) => followJob(timeline, event, data, "failed"),
  "job.stopped": (timeline, event, data) => followJob(timeline, event, data, "stopped"),
  "job.lost": (timeline, event, data) => followJob(timeline, event, data, "lost"),
  "delivery.dead": (timeline, event, data) => addNote(timeline, event, `A reply could not be delivered and was given up (${data.delivery ?? "unknown delivery"}).`, { tone: "failed" }),
  "schedule.fired": (timeline, event) => addNote(timeline, event, "A schedule sent this.", { turn: event.turn }),
  "handover.started": (timeline, event) => addNote(timeline, event, "A person took over: the agent is silent."),
  "handover.ended": (timeline, event) => addNote(timeline, event, "The conversation was given back to the agent."),
};

/** Types that change a conversation's items or the states of its turns. */
export const SHOWN_TYPES = [...Object.keys(READERS), ...Object.keys(ENDED), "turn.started", "turn.restarted"];

/** Types that a conversation does not show, and where they are seen instead. */
export const TYPES_ELSEWHERE = {
  "agent.finished": "the answer is message.completed; webhooks get this one",
  "delivery.succeeded": "Deliveries",
  "delivery.failed": "Deliveries, with the attempts that follow",
  "sandbox.started": "Sandboxes",
  "sandbox.suspended": "Sandboxes",
  "sandbox.stopped": "Sandboxes",
  "webhook.test": "belongs to no conversation: Deliveries",
  "webhook.disabled": "belongs to no conversation: Webhooks",
};

function addNote(timeline, event, text, { tone = "quiet", turn } = {}) {
  timeline.place(`x:${event.id}`, { kind: "note", tone, text, turn, time: event.time });
}

function expireApproval(timeline, event, data) {
  const known = timeline.items.get(`a:${data.approval}`);
  timeline.questions.remove(event.turn, `a:${data.approval}`);
  if (known) timeline.put(`a:${data.approval}`, { ...known, state: "expired" });
}

function requestApproval(timeline, event, data) {
  const fields = approvalFields(data.approval, data);
  timeline.put(`a:${data.approval}`, { kind: "approval", ...fields, state: "pending", turn: event.turn, time: event.time });
  timeline.questions.add(event.turn, `a:${data.approval}`);
  const turn = timeline.turns.get(event.turn);
  if (turn) timeline.turns.set(event.turn, { ...turn, state: "waiting" });
}

function messageItem(event, fields) {
  return {
    kind: "message",
    role: fields.role ?? "assistant",
    text: fields.text ?? "",
    author: authorOf(fields.author),
    authorName: fields.author_name ?? undefined,
    files: fields.files ?? fields.attachments ?? [],
    turn: event.turn ?? fields.turn,
  };
}

function authorOf(author) {
  return typeof author === "string" ? author : (author?.name ?? "");
}

function approvalFields(id, fields) {
  return {
    approval: id,
    tool: fields.tool,
    args: fields.args,
    command: fields.command ?? "",
    question: fields.question ?? "",
    asks: fields.kind === "question",
    choices: fields.choices ?? [],
    form: fields.form ?? null,
    by: deciderOf(fields),
    comment: fields.comment,
  };
}

function deciderOf(fields) {
  return fields.name || fields.decided_name || (fields.by ?? fields.decided_by);
}

function decisionOf(data) {
  const decision = data.decision ?? data.state ?? "resolved";
  return { approve: "approved", deny: "denied" }[decision] ?? decision;
}

function jobFields(id, fields) {
  const known = { id, command: fields.command, exitCode: fields.exit_code, output: fields.output, reason: fields.reason };
  return {
    ...Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined && value !== null)),
    truncated: fields.truncated ?? false,
    files: fields.files ?? [],
  };
}

function followJob(timeline, event, data, state) {
  const known = timeline.items.get(`j:${data.resultId}`) ?? { kind: "job", time: event.time };
  timeline.put(`j:${data.resultId}`, { ...known, ...jobFields(data.resultId, data), state });
}

function takeDelta(timeline, event, data) {
  const attempt = data.attempt ?? timeline.attempt(event.turn);
  if (attempt < timeline.attempt(event.turn)) return;
  const key = `d:${event.turn}:${attempt}:${data.message}`;
  if (timeline.items.has(`m:${data.message}`)) return;
  timeline.dropDrafts(event.turn, (draft) => draft.attempt < attempt);
  const parts = new Map(timeline.items.get(key)?.parts ?? []);
  parts.set(data.part, data.text);
  const text = assemble(parts);
  timeline.put(key, { kind: "draft", message: data.message, parts, text, attempt, turn: event.turn, time: event.time });
  timeline.drafts.add(event.turn, key);
}

/** The text of a draft from its parts; a missing part is shown as an ellipsis. */
export function assemble(parts) {
  const numbers = [...parts.keys()].sort((one, other) => one - other);
  let text = "";
  numbers.forEach((number, index) => {
    const expected = index === 0 ? 0 : numbers[index - 1] + 1;
    text += (number > expected ? " … " : "") + parts.get(number);
  });
  return text;
}

function endCall(timeline, event, data) {
  const waiting = timeline.calls.of(event.turn);
  const key = waiting.find((candidate) => matches(timeline.items.get(candidate), data)) ?? `t:${event.turn}:${data.call ?? event.id}`;
  const known = timeline.items.get(key) ?? { kind: "tool", name: data.name, args: {}, turn: event.turn, time: event.time };
  timeline.put(key, {
    ...known, state: "done", ok: data.ok ?? (data.exit_code ?? 0) === 0, exitCode: data.exit_code, duration: data.duration_ms, timedOut: data.timed_out === true,
    output: data.output ?? "", truncated: data.truncated === true, files: data.files ?? [],
    job: data.resultId,
  });
  timeline.calls.remove(event.turn, key);
  const isJob = data.name === "bash" && data.resultId !== undefined;
  if (isJob && timeline.items.has(`j:${data.resultId}`)) timeline.items.delete(key);
}

function matches(item, data) {
  return data.call === undefined ? item.name === data.name : item.call === data.call;
}
