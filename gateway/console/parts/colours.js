// The colours of code: what highlight.js found, as pieces of text. Its HTML is not used. No DOM, no network.

const KINDS = {
  comment: "comment quote doctag",
  string: "string regexp char link code bullet",
  number: "number literal symbol",
  keyword: "keyword tag name meta section selector-tag strong",
  title: "title type attr attribute property selector-class selector-id selector-pseudo",
  added: "addition",
  removed: "deletion",
};
const KIND_OF = new Map(Object.entries(KINDS).flatMap(([kind, scopes]) => scopes.split(" ").map((scope) => [scope, kind])));

/** The pieces of a code text: strings, and {kind, text}; null if the language is not known. */
export function pieces(highlighter, text, language) {
  if (highlighter.getLanguage(language) === undefined) return null;
  const found = highlighter.highlight(text, { language, ignoreIllegals: true });
  return joined(flattened(found._emitter.rootNode, null));
}

function flattened(node, outer) {
  if (typeof node === "string") return [outer === null ? node : { kind: outer, text: node }];
  const kind = KIND_OF.get(node.scope?.split(".")[0]) ?? (node.scope === "subst" ? null : outer);
  return node.children.flatMap((child) => flattened(child, kind));
}

function joined(all) {
  const found = [];
  for (const piece of all) {
    const last = found.at(-1);
    if (typeof piece === "string" && typeof last === "string") found[found.length - 1] = last + piece;
    else if (typeof piece === "object" && last?.kind === piece.kind) found[found.length - 1] = { kind: piece.kind, text: last.text + piece.text };
    else found.push(piece);
  }
  return found;
}
