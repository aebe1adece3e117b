// Markdown as nodes: the subset works, and nothing in a text becomes anything but text.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Code } from "../../../gateway/console/parts/code.js";
import { plainLine, render, safeUrl } from "../../../gateway/console/parts/markdown.js";

function flatten(nodes) {
  return [nodes].flat(Infinity).flatMap((node) => {
    if (node === null || node === undefined || typeof node !== "object") return [node];
    return [node, ...flatten(node.props.children ?? [])];
  });
}

const tags = (text) => flatten(render(text)).filter((node) => typeof node === "object").map((node) => node.type);
const cells = (row) => row.props.children.map((cell) => flatten(cell).filter((node) => typeof node === "string").join(""));
const words = (text) => flatten(render(text)).filter((node) => typeof node === "string").join("");

const codes = (text) => flatten(render(text)).filter((node) => node?.type === Code).map(({ props }) => props.text);

test("blocks are told apart", () => {
  const blocks = render("# Title\none\ntwo\n\n```py\nx = 1\n```\n- a\n- b\n\n3. c\n\n> said\n\n---\nend");
  assert.deepEqual(blocks.map(({ type }) => type), ["p", "p", Code, "ul", "ol", "blockquote", "hr", "p"]);
  assert.equal(blocks[0].props.class, "heading");
  assert.deepEqual([blocks[2].props.text, blocks[2].props.language], ["x = 1", "py"]);
  assert.equal(blocks[4].props.start, 3);
});

test("a fence that is never closed holds the rest", () => {
  assert.deepEqual(codes("```\na\n# b"), ["a\n# b"]);
});

test("a longer fence holds a shorter one", () => {
  assert.deepEqual(codes("````\n```\n````"), ["```"]);
});

test("spans nest and code is verbatim", () => {
  assert.deepEqual(tags("a **b _c_** `**d**`"), ["p", "strong", "em", "code"]);
  assert.equal(words("a **b _c_** `**d**`"), "a b c **d**");
});

test("marks inside words and lone marks stay text", () => {
  for (const text of ["snake_case_name", "2 * 3 * 4", "a ~ b ~c~", "    four spaces", "one\ntwo"]) {
    assert.deepEqual([tags(text), words(text).trim()], [["p"], text.trim()]);
  }
  assert.equal(words("\\*no\\*"), "*no*");
});

test("links are http or https and nothing else", () => {
  assert.equal(flatten(render("[a](https://example.org/x)"))[1].props.href, "https://example.org/x");
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "//evil.example", "vbscript:x", "java\tscript:alert(1)", " https:/\\evil"]) {
    assert.deepEqual(tags(`[a](${bad})`), ["p"], bad);
    assert.match(words(`[a](${bad})`), /^\[a\]\(/);
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

test("thousands of marks are read in seconds", { timeout: 60_000 }, () => {
  for (const piece of ["*", "_", "`", "[", "![", "**a ", "***a", "_a ", "](", "`` ` ", "[a](http://", "> ", "\\", "https://", "http://a.", "~~a ", "|", "- ", "- a\n", "- a\n\n", "  - a\n", "|a|b|\n|-|-|\n", "|-", "- [ ] x\n", "\n", "<", "&", "1. "]) {
    assert.ok(render(piece.repeat(Math.floor(20_000 / piece.length))).length >= 0, piece);
  }
});

test("what is too long or nested too deep is shown as it is written", () => {
  for (const text of ["*a* ".repeat(20_000), `${"> ".repeat(300)}deep`, `${"- ".repeat(300)}deep`, `a\n${" ".repeat(400)}- deep`]) {
    assert.deepEqual([tags(text), words(text)], [["p"], text]);
  }
});

test("random texts never break the reader", () => {
  const pieces = ["*", "**", "_", "`", "```\n", "[", "](", ")", "https://a.b", "\\", "\n", "# ", "- ", "1. ", "> ", "  - ", "- [ ] ", "~~", "| a | b |\n", "|-|-|\n", "|", " ", "x", "🙂", "<b>"];
  let seed = 7;
  const next = () => (seed = (seed * 1103515245 + 12345) % 2147483648);
  for (let round = 0; round < 2000; round += 1) {
    const text = Array.from({ length: 30 }, () => pieces[next() % pieces.length]).join("");
    for (const node of flatten(render(text))) {
      if (node?.type === "a") assert.match(node.props.href, /^https?:/);
    }
  }
});

test("a table has a head, rows of its width, and alignments", () => {
  const nodes = flatten(render("| a | b |\n|:-:|--:|\n| 1 | x \\| y |\n| 2 |\n| 3 | 4 | 5 |"));
  const rows = nodes.filter((node) => node?.type === "tr").map(cells);
  assert.deepEqual(rows, [["a", "b"], ["1", "x | y"], ["2", ""], ["3", "4"]]);
  assert.deepEqual(nodes.filter((node) => node?.type === "th").map(({ props }) => props.class), ["center", "right"]);
  assert.deepEqual(tags("|a|\n|-|\n|**b**|"), ["div", "table", "thead", "tr", "th", "tbody", "tr", "td", "strong"]);
});

test("lines with bars that are no table stay text", () => {
  for (const text of ["a | b", "a | b\nc | d", "| a |\n|-|-|", "|\n-"]) assert.deepEqual(tags(text), ["p"], text);
});

test("lists nest, hold code, and number on", () => {
  const text = "1. one\n   - inner\n     - innermost\n2. two\n\n   ```\n   x = 1\n   ```\n\n3. three";
  const [list] = render(text);
  assert.deepEqual([list.type, list.props.start, list.props.children.length], ["ol", 1, 3]);
  assert.deepEqual(tags(text).filter((tag) => tag === "ul").length, 2);
  assert.deepEqual(codes(text), ["x = 1"]);
});

test("tasks are boxes that nobody can tick, and struck text is struck", () => {
  const boxes = flatten(render("- [ ] open\n- [x] ~~done~~\n- [y] no task")).filter((node) => node?.type === "input");
  assert.deepEqual(boxes.map(({ props }) => [props.checked, props.disabled]), [[false, true], [true, true]]);
  assert.ok(tags("- [x] ~~done~~").includes("del"));
  assert.equal(words("- [x] ~~done~~"), "done");
});

test("quotes hold blocks", () => {
  assert.deepEqual(tags("> - a\n> - b"), ["blockquote", "ul", "li", "li"]);
});

test("nested items are all shown", () => {
  const deep = Array.from({ length: 50 }, (_, level) => `${"  ".repeat(level)}- x`).join("\n");
  assert.ok(words(deep).split("x").length === 51);
});

test("a line of a list has the words and not the marks", () => {
  assert.equal(plainLine("## What *changed*\n- a `b` snake_case\n\n[next](https://a.b)"), "What changed a b snake_case next");
});
