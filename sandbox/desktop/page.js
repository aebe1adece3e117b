// Reads a page, in a JavaScript world that the page cannot reach. The page shares only its document with that
// world, so it cannot replace the functions that are used here. Every walk has a budget of nodes and characters.
(() => {
if (globalThis.dovecote) return;
const refs = [];
const SKIP = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "TITLE"]);
const ROLES = {A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textbox", IMG: "image",
  SUMMARY: "button", OPTION: "option", IFRAME: "frame", DIALOG: "dialog", NAV: "navigation", MAIN: "main",
  FORM: "form", TABLE: "table"};
const INPUTS = {checkbox: "checkbox", radio: "radio", submit: "button", button: "button", reset: "button",
  image: "button", range: "slider", file: "file", password: "password", number: "number",
  search: "searchbox"};
const USED = new Set(["link", "button", "combobox", "textbox", "checkbox", "radio", "slider", "file",
  "password", "number", "searchbox", "menuitem", "tab", "option", "switch", "editor", "element"]);
const short = (text, most) => {
  const line = String(text ?? "").slice(0, 4 * most).replace(/\s+/g, " ").trim();
  return line.length > most ? line.slice(0, most) + "…" : line;
};
const inner = (element, most) => {
  let text = "", nodes = 0;
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (text.length < most * 2 && nodes++ < 200 && walker.nextNode())
    if (!SKIP.has(walker.currentNode.parentNode?.nodeName)) text += walker.currentNode.data.slice(0, most * 2);
  return text;
};
const role = element => {
  const given = element.getAttribute("role");
  if (given) return short(given.split(" ")[0], 20);
  const tag = element.nodeName;
  if (tag === "A") return element.hasAttribute("href") ? "link" : "";
  if (tag === "INPUT") return element.type === "hidden" ? "" : INPUTS[element.type] ?? "textbox";
  if (/^H[1-6]$/.test(tag)) return "heading " + tag[1];
  if (ROLES[tag]) return ROLES[tag];
  if (element.isContentEditable && !element.parentElement?.isContentEditable) return "editor";
  return element.hasAttribute("onclick") ? "element" : "";
};
const name = element => {
  const labelled = (element.getAttribute("aria-labelledby") ?? "").split(/\s+/).slice(0, 5)
    .map(id => id && document.getElementById(id)).filter(Boolean).map(one => inner(one, 60)).join(" ");
  const labels = [...(element.labels ?? [])].slice(0, 3).map(one => inner(one, 60)).join(" ");
  const button = element.nodeName === "INPUT" && ["submit", "button", "reset"].includes(element.type);
  const field = ["SELECT", "TEXTAREA", "FORM", "TABLE", "NAV", "MAIN", "DIALOG"].includes(element.nodeName);
  return short(labelled || element.getAttribute("aria-label") || labels || (button && element.value)
    || element.getAttribute("alt") || element.getAttribute("placeholder")
    || (field ? "" : inner(element, 100)) || element.getAttribute("title") || element.getAttribute("name"), 100);
};
const state = element => {
  const said = [];
  if (element.checked) said.push("checked");
  if (element.disabled) said.push("disabled");
  if (element.getAttribute("aria-expanded")) said.push("expanded=" + short(element.getAttribute("aria-expanded"), 5));
  if (element.nodeName === "SELECT")
    said.push("options " + JSON.stringify([...element.options].slice(0, 30).map(one => short(one.text, 40))),
      "value " + JSON.stringify(short(element.selectedOptions[0]?.text, 100)));
  else if (element.type === "password") said.push(element.value ? "filled" : "empty");
  else if (["INPUT", "TEXTAREA"].includes(element.nodeName) && !["checkbox", "radio", "submit", "button"].includes(element.type))
    said.push("value " + JSON.stringify(short(element.value, 100)));
  if (element.nodeName === "A") said.push("to " + short(element.href, 200));
  return said.length ? " " + said.join(" ") : "";
};
const refOf = element => {
  const at = refs.indexOf(element);
  return at >= 0 ? at + 1 : refs.push(element);
};
const visible = element => element.checkVisibility
  ? element.checkVisibility({visibilityProperty: true}) || getComputedStyle(element).display === "contents" : true;
const outline = (mostNodes, mostCharacters) => {
  const lines = []; let nodes = 0, characters = 0, full = false;
  const add = (depth, line) => {
    const whole = "  ".repeat(Math.min(depth, 8)) + line;
    characters += whole.length + 1; lines.push(whole);
    full = full || characters > mostCharacters;
  };
  const stack = [[document.body ?? document.documentElement, 0]];
  while (stack.length && !full) {
    const [node, depth] = stack.pop();
    if (!node) continue;
    if (++nodes > mostNodes) { full = true; break; }
    if (node.nodeType === Node.TEXT_NODE) {
      const text = short(node.data, 500);
      if (text) add(depth, text);
      continue;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || SKIP.has(node.nodeName) || !visible(node)) continue;
    const kind = role(node);
    let below = depth;
    if (kind) {
      const used = USED.has(kind);
      add(depth, "- " + kind + " " + JSON.stringify(name(node)) + (used ? ` [ref ${refOf(node)}]` : "") + state(node));
      if ((used && kind !== "editor") || kind.startsWith("heading") || kind === "image") {
        if (!node.querySelector("a[href],button,input,select,textarea")) continue;
      }
      below = depth + 1;
    }
    const children = [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes].slice(0, mostNodes);
    for (let at = children.length - 1; at >= 0; at--) stack.push([children[at], below]);
  }
  return {text: lines.join("\n").slice(0, mostCharacters), truncated: full};
};
const text = (from, most) => {
  const all = (document.body ?? document.documentElement)?.innerText ?? "";
  return {text: all.slice(from, from + most), truncated: all.length > from + most, length: all.length};
};
const byText = wanted => {
  let best = null, nodes = 0;
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_ELEMENT);
  while (nodes++ < 50000 && walker.nextNode()) {
    const element = walker.currentNode;
    if (SKIP.has(element.nodeName) || !USED.has(role(element)) || !visible(element)) continue;
    const called = name(element).toLowerCase();
    if (called === wanted) return element;
    if (!best && called.includes(wanted)) best = element;
  }
  return best;
};
const find = query => {
  if (query.ref) return refs[query.ref - 1] ?? null;
  if (query.selector) return document.querySelector(query.selector);
  return byText(short(query.text, 100).toLowerCase());
};
const locate = query => {
  const element = find(query);
  if (!element?.isConnected) return {missing: true};
  element.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  const box = element.getClientRects()[0] ?? element.getBoundingClientRect();
  if (!box.width || !box.height) return {hidden: true, what: describe(element)};
  const x = Math.min(Math.max(box.x + box.width / 2, 0), innerWidth - 1);
  const y = Math.min(Math.max(box.y + box.height / 2, 0), innerHeight - 1);
  let hit = document.elementFromPoint(x, y);
  while (hit?.shadowRoot?.elementFromPoint(x, y) && hit !== hit.shadowRoot.elementFromPoint(x, y))
    hit = hit.shadowRoot.elementFromPoint(x, y);
  const reached = !hit || element.contains(hit) || hit.contains(element) || hit.closest("label")?.control === element
    || element.shadowRoot?.contains(hit);
  return {x, y, what: describe(element), tag: element.nodeName, type: element.type ?? "",
    covered: reached ? "" : describe(hit)};
};
const describe = element => (role(element) || element.nodeName.toLowerCase()) + " " + JSON.stringify(name(element));
const focus = query => {
  const element = find(query);
  element.focus();
  if (element.select) element.select();
  else if (element.isContentEditable) getSelection().selectAllChildren(element);
};
const choose = (query, wanted) => {
  const element = find(query);
  const option = [...element.options].find(one => one.text.trim() === wanted || one.value === wanted);
  if (!option) return {missing: true};
  element.value = option.value;
  element.dispatchEvent(new Event("input", {bubbles: true}));
  element.dispatchEvent(new Event("change", {bubbles: true}));
  return {};
};
globalThis.dovecote = {outline, text, locate, focus, choose};
})();
