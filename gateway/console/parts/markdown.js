// Markdown as Preact nodes: markdown-it reads the text, and its tokens become nodes. Its HTML is not used: text
// stays text, strings never become markup, links must be http(s) or stay as written, images are never loaded.

import { Code } from "./code.js";
import MarkdownIt from "../vendor/markdown-it.mjs";
import { h } from "../vendor/preact.mjs";

const MAX_URL = 2000;
const MAX_LENGTH = 60_000;
const MAX_NESTING = 250;
const TASK = /^\[([ xX])\] +/;
/** Markdown-it leaves out what is nested deeper than its limit; such a text is shown as it is written. */
const TOO_DEEP = /^(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t])){60}|^[ \t]{200}/m;

const reader = new MarkdownIt({ linkify: true, maxNesting: MAX_NESTING });
reader.disable(["image", "reference", "code"]);
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
reader.validateLink = (url) => safeUrl(url) !== null;

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

/** Preact nodes of a Markdown text. */
export function render(text) {
  if (text.length > MAX_LENGTH || TOO_DEEP.test(text)) return [h("p", null, text)];
  return nodesOf(reader.parse(text, {}));
}

/** The words of a text in one line, without its marks: for lists. */
export function plainLine(text) {
  return wordsOf(reader.parse(text.slice(0, MAX_URL), {})).join(" ").replace(/\s+/g, " ").trim();
}

function wordsOf(tokens) {
  return tokens.flatMap((token) => (token.children ? wordsOf(token.children).join("") : token.content || (token.type.endsWith("break") ? " " : [])));
}

function nodesOf(tokens) {
  const open = [{ children: [] }];
  for (const [at, token] of tokens.entries()) {
    if (token.nesting === 1) {
      open.push({ token, children: [], task: token.type === "list_item_open" ? takeTask(tokens[at + 2]) : null });
      continue;
    }
    const done = token.nesting === -1 ? element(open.pop()) : leaf(token);
    open.at(-1).children.push(...[done].flat());
  }
  return open[0].children;
}

/** Whether a list item that begins with `[ ]` or `[x]` is done, else null; takes the mark out of its text. */
function takeTask(inline) {
  const first = inline?.type === "inline" ? inline.children[0] : null;
  const mark = first?.type === "text" ? TASK.exec(first.content) : null;
  if (mark === null) return null;
  first.content = first.content.slice(mark[0].length);
  return { done: mark[1] !== " " };
}

function leaf(token) {
  if (token.type === "inline") return nodesOf(token.children);
  if (token.type === "fence") return h(Code, { text: token.content.replace(/\n$/, ""), language: token.info.trim() });
  if (token.type === "code_inline") return h("code", null, token.content);
  if (token.type === "hr") return h("hr", null);
  return token.type.endsWith("break") ? "\n" : token.content;
}

function element({ token, children, task }) {
  if (token.hidden) return children; // the paragraphs of a list without blank lines
  const build = ELEMENTS[token.type];
  return build ? build(token, children, task) : h(token.tag, null, children);
}

const ELEMENTS = {
  heading_open: (_token, children) => h("p", { class: "heading" }, children),
  s_open: (_token, children) => h("del", null, children),
  bullet_list_open: (_token, children) => h("ul", { dir: "auto" }, children),
  ordered_list_open: (token, children) => h("ol", { dir: "auto", start: Number(token.attrGet("start") ?? 1) }, children),
  blockquote_open: (_token, children) => h("blockquote", { dir: "auto" }, children),
  list_item_open: (_token, children, task) => (task === null ? h("li", null, children) : h("li", { class: "task" }, [box(task), ...children])),
  link_open: link,
  table_open: (_token, children) => h("div", { class: "scroll" }, h("table", { dir: "auto" }, children)),
  th_open: cell,
  td_open: cell,
};

function link(token, children) {
  const href = safeUrl(token.attrGet("href"));
  return href === null ? children : h("a", { href, rel: "noopener noreferrer", target: "_blank" }, children);
}

function cell(token, children) {
  return h(token.tag, { class: /(center|right)$/.exec(token.attrGet("style") ?? "")?.[0] ?? "left" }, children);
}

function box({ done }) {
  return h("input", { type: "checkbox", checked: done, disabled: true, "aria-label": done ? "done" : "open" });
}
