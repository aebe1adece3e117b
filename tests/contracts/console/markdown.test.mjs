// Markdown as nodes: the subset works, and nothing in a text becomes anything but text.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pieces } from "../../../gateway/console/parts/highlight.js";
import { parse, render, safeUrl, spans } from "../../../gateway/console/parts/markdown.js";

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

test("fifty thousand marks are read once, not once for each", { timeout: 20_000 }, () => {
  for (const piece of ["*", "_", "`", "[", "**a ", "_a ", "](", "`` ` ", "[a](http://", "> ", "\\", "https://", "~~a ", "|", "- ", "- a\n", "- a\n\n", "  - a\n", "|a|b|\n|-|-|\n", "|-", "- [ ] x\n", "\n"]) {
    assert.ok(render(piece.repeat(50_000)).length >= 0, piece);
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
  const [table] = parse("| a | b |\n|:-:|--:|\n| 1 | x \\| y |\n| 2 |\n| 3 | 4 | 5 |");
  assert.equal(table.type, "table");
  assert.deepEqual(table.aligned, ["center", "right"]);
  assert.deepEqual(table.head, ["a", "b"]);
  assert.deepEqual(table.rows, [["1", "x | y"], ["2", ""], ["3", "4"]]);
  assert.deepEqual(tags("|a|\n|-|\n|**b**|"), ["div", "table", "thead", "tr", "th", "tbody", "tr", "td", "strong"]);
});

test("lines with bars that are no table stay text", () => {
  for (const text of ["a | b", "a | b\nc | d", "| a |\n|-|-|", "|\n-"]) assert.deepEqual(tags(text), ["p"], text);
});

test("lists nest, hold code, and number on", () => {
  const [list] = parse("1. one\n   - inner\n     - innermost\n2. two\n\n   ```\n   x = 1\n   ```\n\n3. three");
  assert.deepEqual(list.items.map(({ blocks }) => blocks.map(({ type }) => type)), [["p", "list"], ["p", "code"], ["p"]]);
  assert.equal(list.items[1].blocks[1].text, "x = 1");
  assert.equal(list.items[0].blocks[1].items[0].blocks[1].type, "list");
});

test("tasks are boxes that nobody can tick, and struck text is struck", () => {
  const boxes = flatten(render("- [ ] open\n- [x] ~~done~~\n- [y] no task")).filter((node) => node?.type === "input");
  assert.deepEqual(boxes.map(({ props }) => [props.checked, props.disabled]), [[false, true], [true, true]]);
  assert.ok(tags("- [x] ~~done~~").includes("del"));
  assert.deepEqual(spans("a ~ b ~c~"), ["a ~ b ~c~"]);
});

test("quotes hold blocks", () => {
  assert.deepEqual(tags("> - a\n> - b"), ["blockquote", "ul", "li", "li"]);
});

test("nesting ends somewhere", () => {
  const deep = Array.from({ length: 50 }, (_, level) => `${"  ".repeat(level)}- x`).join("\n");
  assert.ok(tags(deep).length < 30);
  assert.ok(words(deep).split("x").length === 51);
});

test("code has colours and every letter of it", () => {
  const source = 'def f(a):  # why\n    return "x # y" + 12';
  const found = pieces(source, "python");
  assert.equal(found.map((piece) => piece.text ?? piece).join(""), source);
  assert.deepEqual(found.filter(({ kind }) => kind).map(({ kind, text }) => [kind, text]), [
    ["keyword", "def"], ["comment", "# why"], ["keyword", "return"], ["string", '"x # y"'], ["number", "12"],
  ]);
  assert.deepEqual(pieces(source, "unknown"), [source]);
  assert.deepEqual(pieces("x", ""), ["x"]);
});

test("colouring is linear", { timeout: 20_000 }, () => {
  for (const piece of ['"', "'", "`", "/*", "//", "#", "\\", "1.", "a"]) {
    for (const language of ["js", "py", "sql"]) {
      const text = piece.repeat(Math.floor(20_000 / piece.length));
      assert.equal(pieces(text, language).map((one) => one.text ?? one).join(""), text);
    }
  }
});
