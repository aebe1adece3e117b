// What a conversation looks like after its events.

import assert from "node:assert/strict";
import { test } from "node:test";

import { assemble, Timeline } from "../../../gateway/console/core/timeline.js";

let counter = 0;
const event = (type, data = {}, turn = "trn_1") => ({ id: `evt_${(counter += 1)}`, type, time: "2026-01-01T00:00:00Z", conversation: "cnv_1", turn, data });

function after(...events) {
  const timeline = new Timeline();
  events.forEach((one) => timeline.apply(one));
  return timeline;
}

const kinds = (timeline) => timeline.list().map(({ kind }) => kind);

test("a turn with a tool call reads from top to bottom", () => {
  const timeline = after(
    event("message.received", { message: "msg_1", role: "user", text: "!echo hi" }),
    event("turn.queued", { trigger: "message" }),
    event("turn.started", { attempt: 1 }),
    event("tool.called", { name: "bash", args: { command: "echo hi" }, call: "c1", attempt: 1 }),
    event("tool.completed", { name: "bash", call: "c1", exit_code: 0, duration_ms: 12, timed_out: false, output: "hi\n" }),
    event("message.completed", { message: "msg_2", role: "assistant", text: "hi" }),
    event("turn.completed", { attempt: 1 }),
  );
  assert.deepEqual(kinds(timeline), ["message", "tool", "message"]);
  const tool = timeline.list()[1];
  assert.deepEqual([tool.state, tool.exitCode, tool.output, tool.timedOut], ["done", 0, "hi\n", false]);
  assert.deepEqual(timeline.open(), []);
});

test("the output of a running command grows and is replaced by the whole", () => {
  const timeline = after(
    event("tool.called", { name: "bash", args: { command: "make" }, call: "c1", attempt: 1 }),
    event("tool.delta", { call: "c1", stream: "stdout", text: "one\n" }),
    event("tool.delta", { call: "c1", stream: "stderr", text: "two\n" }),
    event("tool.delta", { call: "c9", stream: "stdout", text: "of no call that is known" }),
  );
  assert.deepEqual(timeline.list().map((one) => [one.state, one.output]), [["running", "one\ntwo\n"]]);
  timeline.apply(event("tool.completed", { name: "bash", call: "c1", exit_code: 0, output: "all" }));
  timeline.apply(event("tool.delta", { call: "c1", stream: "stdout", text: "late" }));
  assert.deepEqual(timeline.list().map((one) => [one.state, one.output]), [["done", "all"]]);
});

test("deltas are put together by part and replaced by the whole message", () => {
  const timeline = after(
    event("turn.started", { attempt: 1 }),
    event("message.delta", { message: "msg_2", part: 1, text: "lo", attempt: 1 }),
    event("message.delta", { message: "msg_2", part: 0, text: "hel", attempt: 1 }),
  );
  assert.deepEqual(timeline.list().map(({ kind, text }) => [kind, text]), [["draft", "hello"]]);
  timeline.apply(event("message.completed", { message: "msg_2", role: "assistant", text: "hello" }));
  assert.deepEqual(kinds(timeline), ["message"]);
  timeline.apply(event("message.delta", { message: "msg_2", part: 3, text: "late", attempt: 1 }));
  assert.deepEqual(kinds(timeline), ["message"]);
});

test("the next message may begin before the last one is told whole", () => {
  const timeline = after(
    event("message.delta", { message: "msg_1", part: 0, text: "one", attempt: 1 }),
    event("message.delta", { message: "msg_2", part: 0, text: "two", attempt: 1 }),
    event("message.completed", { message: "msg_1", role: "assistant", text: "one" }),
    event("message.delta", { message: "msg_2", part: 1, text: "!", attempt: 1 }),
  );
  assert.deepEqual(timeline.list().map(({ kind, text }) => [kind, text]), [["message", "one"], ["draft", "two!"]]);
});

test("people keep the names that an event or the snapshot knows", () => {
  const timeline = after(
    event("message.received", { message: "msg_1", role: "user", text: "hi", author: "4711", author_name: "Ann" }),
    event("message.received", { message: "msg_1", role: "user", text: "", author: "4711", deleted: true }),
    event("message.received", { message: "msg_2", role: "user", text: "ho", author: "4712" }),
    event("message.received", { message: "msg_3", role: "user", text: "hu", author: "4713" }),
  );
  timeline.restore({ messages: [{ id: "msg_2", role: "user", text: "ho", author: "4712", author_name: "Bob" }, { id: "msg_3", author_name: null }] });
  assert.deepEqual(timeline.list().map(({ author, authorName }) => [author, authorName]), [["4711", "Ann"], ["4712", "Bob"], ["4713", undefined]]);
});

test("a long history is taken in at once", { timeout: 20_000 }, () => {
  const timeline = new Timeline();
  for (let turn = 0; turn < 10_000; turn += 1) {
    timeline.apply(event("message.received", { message: `msg_u${turn}`, text: "hi" }, `trn_${turn}`));
    timeline.apply(event("tool.called", { name: "bash", args: {}, call: "c1" }, `trn_${turn}`));
    timeline.apply(event("tool.completed", { name: "bash", call: "c1", ok: true }, `trn_${turn}`));
    timeline.apply(event("message.completed", { message: `msg_a${turn}`, role: "assistant", text: "ho" }, `trn_${turn}`));
    timeline.apply(event("turn.completed", {}, `trn_${turn}`));
  }
  assert.equal(timeline.list().length, 30_000);
});

test("a part that is missing shows", () => {
  assert.equal(assemble(new Map([[0, "a"], [2, "c"]])), "a … c");
  assert.equal(assemble(new Map([[0, "a"], [1, "b"]])), "ab");
  assert.equal(assemble(new Map([[4, "d"]])), " … d");
});

test("what an earlier attempt was saying is dropped, what it did and said to the end stays", () => {
  const timeline = after(
    event("turn.started", { attempt: 1 }),
    event("message.completed", { message: "msg_1", role: "assistant", text: "first", attempt: 1 }),
    event("tool.called", { name: "bash", args: { command: "two" }, call: "c2", attempt: 1 }),
    event("message.delta", { message: "msg_2", part: 0, text: "half", attempt: 1 }),
    event("turn.restarted", { attempt: 2 }),
  );
  assert.deepEqual(kinds(timeline), ["message", "tool"]);
  timeline.apply(event("message.delta", { message: "msg_2", part: 1, text: "old", attempt: 1 }));
  assert.deepEqual(kinds(timeline), ["message", "tool"]);
  timeline.apply(event("tool.completed", { name: "bash", call: "c2", ok: false, exit_code: null, output: "interrupted", attempt: 2 }));
  timeline.apply(event("message.delta", { message: "msg_2", part: 0, text: "new", attempt: 2 }));
  assert.deepEqual(kinds(timeline), ["message", "tool", "draft"]);
  const [, tool, draft] = timeline.list();
  assert.deepEqual([tool.args.command, tool.ok, tool.output, draft.text], ["two", false, "interrupted", "new"]);
});

test("a turn that waits for another attempt shows why, until it goes on", () => {
  const timeline = after(
    event("turn.started", { attempt: 1 }),
    event("message.delta", { message: "msg_1", part: 0, text: "half", attempt: 1 }),
    event("turn.retrying", { attempt: 1, after: 2, at: "2026-01-02T03:04:07Z", error: "HTTP 500" }),
    event("turn.retrying", { attempt: 2, after: 10, at: "2026-01-02T03:04:19Z", error: "HTTP 503" }),
  );
  assert.deepEqual(kinds(timeline), ["retry"]);
  assert.deepEqual([timeline.list()[0].error, timeline.list()[0].attempt], ["HTTP 503", 2]);
  assert.deepEqual(timeline.open(), [{ turn: "trn_1", state: "retrying" }]);
  timeline.apply(event("turn.started", { attempt: 3 }));
  assert.deepEqual(kinds(timeline), []);
});

test("a long wait is shown until the turn goes on", () => {
  const timeline = after(
    event("turn.started", { attempt: 1 }),
    event("tool.called", { call: "c1", name: "bash", args: {} }),
    event("turn.waiting", { attempt: 1, reason: "starting the sandbox" }),
    event("turn.waiting", { attempt: 1, reason: "loading the workspace" }),
  );
  assert.deepEqual(kinds(timeline), ["tool", "note"]);
  assert.equal(timeline.list()[1].text, "Still loading the workspace…");
  assert.deepEqual(timeline.open(), [{ turn: "trn_1", state: "running" }]);
  timeline.apply(event("tool.completed", { call: "c1", name: "bash", ok: true }));
  assert.deepEqual(kinds(timeline), ["tool"]);
});

test("a failed turn can be retried until it was", () => {
  const timeline = after(event("turn.failed", { attempt: 1, error: "HTTP 401" }));
  assert.equal(timeline.list()[0].retry, "trn_1");
  timeline.apply(event("turn.queued", { attempt: 0, retry_of: "trn_1" }, "trn_2"));
  assert.equal(timeline.list()[0].retry, undefined);
});

test("an approval of a turn that is over expires", () => {
  const timeline = after(
    event("approval.requested", { approval: "apr_1", tool: "bash", args: {}, command: "ls" }),
    event("turn.cancelled", { attempt: 1 }),
  );
  assert.equal(timeline.list()[0].state, "expired");
});

test("an approval waits, and then tells who decided", () => {
  const timeline = after(
    event("turn.started", { attempt: 1 }),
    event("approval.requested", { approval: "apr_1", tool: "bash", args: {}, command: "rm -r x" }),
  );
  assert.deepEqual(timeline.open(), [{ turn: "trn_1", state: "waiting" }]);
  timeline.apply(event("approval.resolved", { approval: "apr_1", decision: "deny", by: "ann", command: "rm -r x" }));
  const [approval] = timeline.list();
  assert.deepEqual([approval.state, approval.by, approval.command], ["denied", "ann", "rm -r x"]);
});

test("a job stays one card from start to end", () => {
  const timeline = after(
    event("job.started", { resultId: "job_1", command: "sleep 1", exit_code: null, output: "", files: [] }),
    event("job.completed", { resultId: "job_1", exit_code: 0, output: "done", truncated: false, files: [] }),
  );
  const [job] = timeline.list();
  assert.equal(timeline.list().length, 1);
  assert.deepEqual([job.state, job.command, job.exitCode, job.output], ["completed", "sleep 1", 0, "done"]);
});

test("a failed turn says so and leaves nothing open", () => {
  const timeline = after(
    event("turn.started", { attempt: 1 }),
    event("tool.called", { name: "bash", args: {}, call: "c1" }),
    event("message.delta", { message: "msg_2", part: 1, text: "half" }),
    event("turn.failed", { error: "the model is gone" }),
  );
  assert.deepEqual(timeline.list().map(({ kind, state }) => [kind, state ?? ""]), [["tool", "unknown"], ["note", ""]]);
  assert.match(timeline.list()[1].text, /the model is gone/);
});

test("a snapshot adds what no event told and repeats nothing", () => {
  const timeline = after(event("message.received", { message: "msg_1", role: "user", text: "hi" }));
  timeline.restore({
    messages: [{ id: "msg_1", role: "user", text: "hi" }, { id: "msg_2", role: "assistant", text: "ho" }],
    jobs: [{ resultId: "job_1", state: "running", command: "sleep 9" }],
    approvals: [{ id: "apr_1", state: "pending", tool: "bash", command: "ls" }],
  });
  assert.deepEqual(timeline.list().map(({ key }) => key), ["m:msg_1", "m:msg_2", "j:job_1", "a:apr_1"]);
  timeline.apply(event("message.completed", { message: "msg_2", role: "assistant", text: "ho" }));
  assert.equal(timeline.list().filter(({ kind }) => kind === "message").length, 2);
});

test("a kind that is not known is let be", () => {
  assert.deepEqual(after(event("something.new", { x: 1 })).list(), []);
});

test("a job is one card: the call that started it is not shown beside it", () => {
  const timeline = after(
    event("tool.called", { name: "bash", args: { command: "sleep 9", background: true }, call: "c1", attempt: 1 }),
    event("job.started", { resultId: "job_1", command: "sleep 9" }),
    event("tool.completed", { name: "bash", call: "c1", ok: true, output: "{}", resultId: "job_1" }),
    event("tool.called", { name: "async_status", args: { resultId: "job_1" }, call: "c2", attempt: 1 }),
    event("tool.completed", { name: "async_status", call: "c2", ok: true, output: "running", resultId: "job_1" }),
  );
  assert.deepEqual(timeline.list().map(({ kind, name }) => [kind, name]), [["job", undefined], ["tool", "async_status"]]);
});

test("a reaction stands at its message, once, also when the message comes later", () => {
  const reacted = (data) => event("message.reacted", { emoji: "👍", name: "+1", by: "agt_1", channel: "chn_1", room: "1", ...data });
  const timeline = after(
    event("message.received", { message: "msg_1", role: "user", text: "thanks" }),
    reacted({ message: "msg_1" }),
    reacted({ message: "msg_1" }),
    reacted({ message: "msg_1", emoji: "🎉", name: "tada" }),
    reacted({ message: "msg_9" }),
  );
  assert.deepEqual(timeline.list()[0].reactions.map(({ emoji }) => emoji), ["👍", "🎉"]);
  timeline.restore({ messages: [{ id: "msg_9", role: "user", text: "old" }] });
  assert.deepEqual(timeline.list().map(({ text, reactions }) => [text, reactions.length]), [["thanks", 2], ["old", 1]]);
  timeline.apply(event("message.edited", { message: "msg_1", text: "thank you" }));
  assert.equal(timeline.list()[0].reactions.length, 2);
});

test("a reaction to a message that the gateway does not keep is a note", () => {
  const timeline = after(event("message.reacted", { message: null, emoji: "👀", name: "eyes", by: "agt_1" }));
  assert.deepEqual(timeline.list().map(({ kind, text }) => [kind, text.includes("👀")]), [["note", true]]);
});

test("a schedule and a person who takes over are noted", () => {
  const timeline = after(event("schedule.fired", { schedule: "sch_1" }), event("handover.started", { by: "key_1" }), event("handover.ended", { by: "key_1" }));
  assert.deepEqual(kinds(timeline), ["note", "note", "note"]);
});
