// Markdown as nodes: the subset works, and nothing in a text becomes anything but text.

import assert from "node:assert/strict";
import { test } from "node:test";

import { parse, render, safeUrl, spans } from "../../../gateway/console/markdown.js";

function flatten(nodes) {
  return [nodes].flat(Infinity).flatMap((node) => {
    if (node === null || node === undefined || typeof node !== "object") return [node];
    return [node, ...flatten(node.props.children ?? [])];
  });
}

const tags = (text) => flatten(render(text)).filter((node) => typeof node === "object").map((node) => node.type);
const words = (text) => flatten(render(text)).filter((node) => typeof node === "string").join("");

test("blocks are told apart", () => {
  const blocks = parse("# Title\none\ntwo\n\n```py\nx = 1\n```\n- a\n- b\n\n3. c\n> said\n---\nend");
  assert.deepEqual(blocks.map(({ type }) => type), ["heading", "p", "code", "list", "list", "quote", "rule", "p"]);
  assert.equal(blocks[2].text, "x = 1");
  assert.equal(blocks[4].first, 3);
});

test("a fence that is never closed holds the rest", () => {
  const [block] = parse("```\na\n# b");
  assert.deepEqual([block.type, block.text], ["code", "a\n# b"]);
});

test("a longer fence holds a shorter one", () => {
  const [block] = parse("````\n```\n````");
  assert.equal(block.text, "```");
});

test("spans nest and code is verbatim", () => {
  assert.deepEqual(spans("a **b _c_** `**d**`"), [
    "a ",
    { type: "strong", content: ["b ", { type: "em", content: ["c"] }] },
    " ",
    { type: "code", text: "**d**" },
  ]);
});

test("marks inside words and lone marks stay text", () => {
  assert.deepEqual(spans("snake_case_name"), ["snake_case_name"]);
  assert.deepEqual(spans("2 * 3 * 4"), ["2 * 3 * 4"]);
  assert.equal(spans("\\*no\\*").join(""), "*no*");
});

test("links are http or https and nothing else", () => {
  assert.equal(spans("[a](https://example.org/x)")[0].href, "https://example.org/x");
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "//evil.example", "vbscript:x", "java\tscript:alert(1)", " https:/\\evil"]) {
    assert.deepEqual(tags(`[a](${bad})`), ["p"], bad);
    assert.equal(words(`[a](${bad})`), `[a](${bad})`);
  }
  assert.equal(safeUrl("https://"), null);
});

test("a link opens elsewhere and tells the other page nothing", () => {
  const link = flatten(render("see https://example.org/a.")).find((node) => node?.type === "a");
  assert.equal(link.props.href, "https://example.org/a");
  assert.match(link.props.rel, /noopener/);
});

test("markup in a text is text", () => {
  for (const hostile of ["<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "![x](https://evil.example/pixel.png)", "`<b>`"]) {
    assert.ok(tags(hostile).every((tag) => ["p", "code", "a"].includes(tag)), hostile);
  }
  assert.equal(words("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>");
});

test("every text comes out whole when it holds no marks", () => {
  const text = "línea ünïcode 漢字 🙂 & <tag> \"quotes\" 'n' all";
  assert.equal(words(text), text);
});

test("a hundred thousand marks are read once, not once for each", { timeout: 20_000 }, () => {
  for (const piece of ["*", "_", "`", "[", "**a ", "_a ", "](", "`` ` ", "[a](http://", "> ", "\\", "https://"]) {
    assert.ok(render(piece.repeat(100_000)).length >= 0, piece);
  }
});

test("random texts never break the reader", () => {
  const pieces = ["*", "**", "_", "`", "```\n", "[", "](", ")", "https://a.b", "\\", "\n", "# ", "- ", "1. ", "> ", " ", "x", "🙂", "<b>"];
  let seed = 7;
  const next = () => (seed = (seed * 1103515245 + 12345) % 2147483648);
  for (let round = 0; round < 2000; round += 1) {
    const text = Array.from({ length: 30 }, () => pieces[next() % pieces.length]).join("");
    for (const node of flatten(render(text))) {
      if (node?.type === "a") assert.match(node.props.href, /^https?:/);
    }
  }
});
