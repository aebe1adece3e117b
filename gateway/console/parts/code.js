// A block of code with colours, and a button that copies it.

import { pieces } from "./highlight.js";
import { useState } from "../vendor/hooks.mjs";
import { h } from "../vendor/preact.mjs";

export function Code({ text, language }) {
  const coloured = pieces(text, language).map((piece) =>
    typeof piece === "string" ? piece : h("span", { class: `code-${piece.kind}` }, piece.text),
  );
  return h("div", { class: "codebox" }, [
    h(Copy, { text }),
    h("pre", { class: "code", tabIndex: 0, "aria-label": language || "code" }, h("code", null, coloured)),
  ]);
}

/** Browsers offer the clipboard on https and on this machine only; elsewhere there is no button. */
function Copy({ text }) {
  const [copied, setCopied] = useState(false);
  if (!globalThis.navigator?.clipboard) return null;
  const copy = () => navigator.clipboard.writeText(text).then(() => setCopied(true), () => setCopied(false));
  return h("button", { type: "button", class: "copy", onClick: copy }, copied ? "Copied" : "Copy");
}
