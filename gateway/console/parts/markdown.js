// Markdown as Preact nodes: the parts that models use. Text stays text: strings never become markup, links
// must be http(s) or stay as written, images are never loaded. Every scan is linear in its input.

import { Code } from "./code.js";
import { h } from "../vendor/preact.mjs";

const MAX_DEPTH = 4;
const MAX_COLUMNS = 50;
const MAX_LABEL = 1000;
const MAX_URL = 2000;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;

/** The URL if it is http or https, else null. */
export function safeUrl(text) {
  if (text.length > MAX_URL || !/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

/** Blocks of a text: {type: p | code | heading | list | quote | table | rule, …}. */
export function parse(text, depth = 0) {
  if (depth > MAX_DEPTH) return [{ type: "p", text }];
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = readerOf(lines, at).read(lines, at, depth);
    if (block) blocks.push(block);
    at = next;
  }
  return blocks;
}

function readerOf(lines, at) {
  return READERS.find((candidate) => candidate.opens(lines[at], lines[at + 1]));
}

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]{0,80})$/;
const HEADING = /^(#{1,6}) +(\S.*)$/;
const RULE = /^ {0,3}(-{3,}|\*{3,}|_{3,})\s*$/;
const BULLET = /^ {0,3}[-*+] +(\S.*)$/;
const NUMBER = /^ {0,3}(\d{1,6})[.)] +(\S.*)$/;
const TASK = /^\[([ xX])\] +/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const BLANK = /^\s*$/;

const READERS = [
  { opens: (line) => BLANK.test(line), read: (lines, at) => [null, at + 1] },
  { opens: (line) => FENCE.test(line), read: readFence },
  {
    opens: (line) => HEADING.test(line),
    read: (lines, at) => {
      const [, marks, text] = HEADING.exec(lines[at]);
      return [{ type: "heading", level: marks.length, text }, at + 1];
    },
  },
  { opens: (line) => RULE.test(line), read: (lines, at) => [{ type: "rule" }, at + 1] },
  { opens: (line) => BULLET.test(line), read: (lines, at, depth) => readList(lines, at, BULLET, depth) },
  { opens: (line) => NUMBER.test(line), read: (lines, at, depth) => readList(lines, at, NUMBER, depth) },
  { opens: (line) => QUOTE.test(line), read: readQuote },
  { opens: (line, next) => alignments(line, next) !== null, read: readTable },
  { opens: () => true, read: readParagraph },
];

function readFence(lines, start) {
  const [, marks, language] = FENCE.exec(lines[start]);
  let at = start + 1;
  while (at < lines.length && !closesFence(lines[at], marks)) at += 1;
  const text = lines.slice(start + 1, at).join("\n");
  return [{ type: "code", language: language.trim(), text }, at + 1];
}

function closesFence(line, marks) {
  const trimmed = line.trim();
  return trimmed.length >= marks.length && trimmed === marks[0].repeat(trimmed.length);
}

function readList(lines, start, shape, depth) {
  const items = [];
  let at = start;
  while (at < lines.length && shape.test(lines[at])) {
    const [body, next] = readItem(lines, at, shape);
    items.push(item(body, depth));
    const following = skipBlank(lines, next);
    at = following < lines.length && shape.test(lines[following]) ? following : next;
  }
  const ordered = shape === NUMBER;
  return [{ type: "list", ordered, first: ordered ? Number(NUMBER.exec(lines[start])[1]) : 1, items }, at];
}

/** The lines of a list item without its mark and indentation, and where the item ends. */
function readItem(lines, start, shape) {
  const [whole, ...groups] = shape.exec(lines[start]);
  const width = whole.length - groups.at(-1).length;
  const body = [groups.at(-1)];
  let at = start + 1;
  while (at < lines.length) {
    const next = skipBlank(lines, at);
    if (next === lines.length || indentOf(lines[next]) < 2) break;
    for (; at < next; at += 1) body.push("");
    body.push(lines[at].slice(Math.min(width, indentOf(lines[at]))));
    at += 1;
  }
  return [body.join("\n"), at];
}

function item(body, depth) {
  const task = TASK.exec(body);
  const done = task === null ? null : task[1] !== " ";
  return { done, blocks: parse(task === null ? body : body.slice(task[0].length), depth + 1) };
}

function skipBlank(lines, from) {
  let at = from;
  while (at < lines.length && BLANK.test(lines[at])) at += 1;
  return at;
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function readQuote(lines, start, depth) {
  const quoted = [];
  let at = start;
  for (; at < lines.length && QUOTE.test(lines[at]); at += 1) quoted.push(QUOTE.exec(lines[at])[1]);
  return [{ type: "quote", blocks: parse(quoted.join("\n"), depth + 1) }, at];
}

/** The alignments of a table's columns if two lines begin one, else null. */
function alignments(line, next) {
  if (next === undefined || !line.includes("|") || !/^[ \t|:-]+$/.test(next) || !next.includes("|")) return null;
  const marks = cellsOf(next);
  const fits = marks.length <= MAX_COLUMNS && marks.length === cellsOf(line).length;
  return fits && marks.every((mark) => /^:?-+:?$/.test(mark)) ? marks.map(alignmentOf) : null;
}

function alignmentOf(mark) {
  if (mark.endsWith(":")) return mark.startsWith(":") ? "center" : "right";
  return "left";
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function readTable(lines, start) {
  const aligned = alignments(lines[start], lines[start + 1]);
  const rows = [];
  let at = start + 2;
  for (; at < lines.length && lines[at].includes("|"); at += 1) {
    const cells = cellsOf(lines[at]);
    rows.push(aligned.map((_, column) => cells[column] ?? ""));
  }
  return [{ type: "table", aligned, head: cellsOf(lines[start]), rows }, at];
}

function readParagraph(lines, start) {
  let at = start + 1;
  while (at < lines.length && readerOf(lines, at).read === readParagraph) {
    at += 1;
  }
  return [{ type: "p", text: lines.slice(start, at).join("\n") }, at];
}

/** Spans of a line: strings and {type: code | strong | em | del | link, …}. */
export function spans(text, depth = 0) {
  return depth > MAX_DEPTH ? [text] : new Scan(text, depth).run();
}

const EMPHASIS = { "**": "strong", __: "strong", "~~": "del" };

class Scan {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.plainFrom = 0;
    this.found = [];
    this.absent = new Set(); // closers that do not come any more: searched for once, not once per opener
    this.label = null;
  }

  run() {
    while (this.at < this.text.length) {
      if (!this.step(this.text[this.at])) this.at += 1;
    }
    this.flush(this.text.length);
    return this.found;
  }

  step(char) {
    if (char === "\\") return this.escape();
    if (char === "`") return this.code();
    if (char === "*" || char === "_") return this.emphasis(char);
    if (char === "~" && this.text[this.at + 1] === "~") return this.emphasis(char);
    if (char === "[") return this.link();
    if (char === "h") return this.address();
    return false;
  }

  flush(until) {
    if (until > this.plainFrom) this.found.push(this.text.slice(this.plainFrom, until));
  }

  take(span, next) {
    this.flush(this.at);
    if (span !== null) this.found.push(span);
    this.at = next;
    this.plainFrom = next;
    return true;
  }

  escape() {
    if (!PUNCTUATION.test(this.text[this.at + 1] ?? "")) return false;
    this.take(null, this.at + 1);
    this.at += 1; // the escaped mark is plain text and opens nothing
    return true;
  }

  code() {
    let width = 1;
    while (this.text[this.at + width] === "`") width += 1;
    const marks = "`".repeat(width);
    const close = this.closer(marks, this.at + width, (at) => this.text[at + width] !== "`" && this.text[at - 1] !== "`");
    if (close === -1) {
      this.at += width;
      return true;
    }
    const inner = this.text.slice(this.at + width, close);
    const bare = /^ .*\S.* $/s.test(inner) ? inner.slice(1, -1) : inner;
    return this.take({ type: "code", text: bare }, close + width);
  }

  emphasis(char) {
    const marks = this.text[this.at + 1] === char ? char + char : char;
    const inner = this.at + marks.length;
    if (/^\s?$/.test(this.text[inner] ?? "") || (char === "_" && WORD.test(this.text[this.at - 1] ?? ""))) {
      this.at += marks.length;
      return true;
    }
    const close = this.closer(marks, inner + 1, (at) => this.endsEmphasis(at, marks));
    if (close === -1) {
      this.at += marks.length;
      return true;
    }
    const content = spans(this.text.slice(inner, close), this.depth + 1);
    return this.take({ type: EMPHASIS[marks] ?? "em", content }, close + marks.length);
  }

  endsEmphasis(at, marks) {
    if (/\s/.test(this.text[at - 1])) return false;
    const after = this.text[at + marks.length] ?? "";
    if (marks[0] === "_" && WORD.test(after)) return false;
    return marks.length === 2 || (after !== marks && this.text[at - 1] !== marks);
  }

  closer(marks, from, fits) {
    if (this.absent.has(marks)) return -1;
    let at = this.text.indexOf(marks, from);
    while (at !== -1 && !fits(at)) at = this.text.indexOf(marks, at + 1);
    if (at === -1) this.absent.add(marks);
    return at;
  }

  link() {
    const label = this.nextLabel();
    if (label.open !== this.at || label.close - label.open > MAX_LABEL) return false;
    const from = label.close + 2;
    const length = this.text.slice(from, from + MAX_URL + 1).indexOf(")");
    const href = length === -1 ? null : safeUrl(this.text.slice(from, from + length).trim());
    if (href === null) return false;
    const content = spans(this.text.slice(this.at + 1, label.close), MAX_DEPTH);
    return this.take({ type: "link", href, content }, from + length + 1);
  }

  /** Where the next `](` is and which bracket opens it: looked up once for all brackets before it. */
  nextLabel() {
    if (this.label === null || (this.label.close !== -1 && this.label.close < this.at)) {
      const close = this.text.indexOf("](", this.at);
      this.label = { close, open: close === -1 ? -1 : this.text.lastIndexOf("[", close) };
    }
    return this.label;
  }

  address() {
    if (!/^https?:\/\//i.test(this.text.slice(this.at, this.at + 8))) return false;
    if (WORD.test(this.text[this.at - 1] ?? "")) return false;
    const run = /^[^\s<>"'`]+/.exec(this.text.slice(this.at, this.at + MAX_URL))[0].replace(/[.,;:!?)\]*_]+$/, "");
    const href = safeUrl(run);
    return href === null ? false : this.take({ type: "link", href, content: [run] }, this.at + run.length);
  }
}

/** Preact nodes of a Markdown text. */
export function render(text) {
  return parse(text).map(renderBlock);
}

function renderBlock(block) {
  if (block.type === "code") return h(Code, { text: block.text, language: block.language });
  if (block.type === "heading") return h("p", { class: "heading" }, renderSpans(block.text));
  if (block.type === "rule") return h("hr", null);
  if (block.type === "quote") return h("blockquote", null, block.blocks.map(renderBlock));
  if (block.type === "table") return renderTable(block);
  if (block.type === "list") {
    const items = block.items.map(renderItem);
    return block.ordered ? h("ol", { start: block.first }, items) : h("ul", null, items);
  }
  return h("p", null, renderSpans(block.text));
}

/** A list item; its first paragraph stands beside the mark. */
function renderItem({ done, blocks }) {
  const [first, ...rest] = blocks;
  const beside = first?.type === "p" ? renderSpans(first.text) : [first].filter(Boolean).map(renderBlock);
  const box = done === null ? null : h("input", { type: "checkbox", checked: done, disabled: true, "aria-label": done ? "done" : "open" });
  return h("li", done === null ? null : { class: "task" }, [box, beside, rest.map(renderBlock)].filter((part) => part !== null));
}

function renderTable({ aligned, head, rows }) {
  const row = (tag, cells) => h("tr", null, cells.map((cell, column) => h(tag, { class: aligned[column] }, renderSpans(cell))));
  return h("div", { class: "scroll" }, h("table", null, [h("thead", null, row("th", head)), h("tbody", null, rows.map((cells) => row("td", cells)))]));
}

function renderSpans(text) {
  return spans(text).map(renderSpan);
}

function renderSpan(span) {
  if (typeof span === "string") return span;
  if (span.type === "code") return h("code", null, span.text);
  if (span.type === "link") {
    const props = { href: span.href, rel: "noopener noreferrer", target: "_blank" };
    return h("a", props, span.content.map(renderSpan));
  }
  return h(span.type, null, span.content.map(renderSpan));
}
