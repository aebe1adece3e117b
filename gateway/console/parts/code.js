// A block of code with colours, and a button that copies it.

import { highlighter } from "./highlight.js";
import { useEffect, useState } from "../vendor/hooks.mjs";
import { h } from "../vendor/preact.mjs";

export function Code({ text, language }) {
  const coloured = useColours(text, language).map((piece) =>
    typeof piece === "string" ? piece : h("span", { class: `code-${piece.kind}` }, piece.text),
  );
  return h("div", { class: "codebox" }, [
    h(Copy, { text }),
    h("pre", { class: "code", tabIndex: 0, "aria-label": language || "code" }, h("code", null, coloured)),
  ]);
}

/** The pieces of a text. Until its colours are known it is plain, after a start that was coloured before. */
function useColours(text, language) {
  const [known, setKnown] = useState({ text: "", language, pieces: [] });
  useEffect(() => {
    let isWanted = true;
    highlighter.colour(text, language, () => isWanted).then((pieces) => isWanted && pieces !== null && setKnown({ text, language, pieces }));
    return () => {
      isWanted = false;
    };
  }, [text, language]);
  if (language !== known.language || !text.startsWith(known.text)) return [text];
  return [...known.pieces, text.slice(known.text.length)];
}

/** Browsers offer the clipboard on https and on this machine only; elsewhere there is no button. */
function Copy({ text }) {
  const [copied, setCopied] = useState(false);
  if (!globalThis.navigator?.clipboard) return null;
  const copy = () => navigator.clipboard.writeText(text).then(() => setCopied(true), () => setCopied(false));
  return h("button", { type: "button", class: "copy", onClick: copy }, copied ? "Copied" : "Copy");
}
