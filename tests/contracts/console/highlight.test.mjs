// The colours of code: what highlight.js finds becomes pieces of text, and a block that takes too long stays plain.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pieces } from "../../../gateway/console/parts/colours.js";
import { Highlighter } from "../../../gateway/console/parts/highlight.js";
import hljs from "../../../gateway/console/vendor/highlight.mjs";

const textOf = (found) => found.map((piece) => piece.text ?? piece).join("");

test("code has colours and every letter of it", () => {
  const source = 'def f(a):  # why\n    return "x # y" + f"<b>{a}&amp;" + 12';
  const found = pieces(hljs, source, "python");
  assert.equal(textOf(found), source);
  const coloured = found.filter(({ kind }) => kind).map(({ kind, text }) => [kind, text]);
  for (const expected of [["keyword", "def"], ["title", "f"], ["comment", "# why"], ["string", '"x # y"'], ["number", "12"]]) {
    assert.ok(coloured.some((one) => JSON.stringify(one) === JSON.stringify(expected)), expected.join(" "));
  }
});

test("every common language keeps every letter of any text", () => {
  const text = "<a href='x'>\"\\ $(x) `y` // # -- /* { [ ( 1.5e3 import SELECT ${a} @b *c* _d_\n+added\n-gone\n";
  for (const language of hljs.listLanguages()) assert.equal(textOf(pieces(hljs, text, language)), text, language);
  assert.equal(pieces(hljs, text, "unknown"), null);
});

/** Workers that answer as `answer` does, or not at all where it returns undefined. */
function workers(answer) {
  const started = [];
  const open = () => {
    const worker = {
      asked: [],
      ended: false,
      terminate: () => (worker.ended = true),
      postMessage: (block) => {
        worker.asked.push(block.text);
        const data = answer(block);
        if (data !== undefined) setImmediate(() => worker.onmessage({ data }));
      },
    };
    setImmediate(() => worker.onmessage({ data: "ready" }));
    started.push(worker);
    return worker;
  };
  return { open, started };
}

test("a block that takes too long stays plain, and the next one has a new worker", async () => {
  const { open, started } = workers(({ text }) => (text === "endless" ? undefined : [text]));
  const highlighter = new Highlighter(open, 1);
  assert.equal(await highlighter.colour("endless", "js"), null);
  assert.equal(started[0].ended, true);
  const patient = new Highlighter(open, 60_000);
  assert.deepEqual(await patient.colour("short", "js"), ["short"]);
  assert.equal(await highlighter.colour("endless", "js"), null);
  assert.deepEqual(started.map(({ asked }) => asked), [["endless"], ["short"]]);
});

test("one worker colours all blocks, each text once, and none that nobody waits for", async () => {
  const { open, started } = workers(({ text, language }) => [{ kind: "keyword", text: `${language}:${text}` }]);
  const highlighter = new Highlighter(open, 60_000);
  const [first, gone, second] = await Promise.all([highlighter.colour("a", "Py {1}"), highlighter.colour("b", "py", () => false), highlighter.colour("c", "py")]);
  assert.deepEqual([first[0].text, gone, second[0].text], ["py:a", null, "py:c"]);
  assert.equal(await highlighter.colour("a", "py"), first);
  assert.deepEqual(started.map(({ asked }) => asked), [["a", "c"]]);
});

test("no worker is started for what has no language, or is too large", async () => {
  const { open, started } = workers(() => []);
  const highlighter = new Highlighter(open, 60_000);
  for (const [text, language] of [["x", ""], ["x".repeat(20_001), "js"], ["x", "<b>"]]) assert.equal(await highlighter.colour(text, language), null);
  assert.equal(started.length, 0);
});
