// Colours for code: strings, comments, numbers and keywords as spans of text. One linear scan.

const MAX_LENGTH = 20_000;

const KEYWORDS = new Set(
  `abstract and as assert async await begin break case catch class const continue def default defer del do done
  elif else end enum esac except export extends false fi final finally fn for foreach from func function global go
  if impl implements import in interface is lambda let local loop match mod module mut namespace new nil none not
  null or package pass private protected pub public raise return select self static struct super switch then this
  throw trait true try type undefined union until use using val var void when where while with yield
  create delete drop group having insert into join left limit on order set table update values`.split(/\s+/),
);

const STRING = `"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?`;
const TEMPLATE = "`(?:[^`\\\\]|\\\\[\\s\\S])*`?";
const NUMBER = "\\b\\d[\\w.]*";
const WORD = "[\\p{L}_$][\\p{L}\\p{N}_$]*";
const HASH = "#[^\\n]*";
const SLASHES = "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)";
const DASHES = "--[^\\n]*";

const FAMILIES = [
  { names: "sh bash zsh shell console py python rb ruby yaml yml toml ini dockerfile makefile perl r", comments: HASH },
  { names: "sql lua haskell hs", comments: DASHES },
  { names: "js javascript ts typescript jsx tsx mjs c h cpp c++ cs csharp java kotlin swift go rust rs php scala dart css json jsonc zig", comments: SLASHES, strings: `${STRING}|${TEMPLATE}` },
];

const SCANNERS = new Map();
for (const { names, comments, strings = STRING } of FAMILIES) {
  const source = `(?<comment>${comments})|(?<string>${strings})|(?<number>${NUMBER})|(?<word>${WORD})`;
  for (const name of names.split(" ")) SCANNERS.set(name, source);
}

/** The pieces of a code text: strings, and {kind: comment | string | number | keyword, text}. */
export function pieces(text, language) {
  const source = SCANNERS.get(language.split(/[\s,{:]/, 1)[0].toLowerCase());
  if (source === undefined || text.length > MAX_LENGTH) return [text];
  const found = [];
  let plainFrom = 0;
  for (const match of text.matchAll(new RegExp(source, "gu"))) {
    const kind = kindOf(match.groups);
    if (kind === null) continue;
    if (match.index > plainFrom) found.push(text.slice(plainFrom, match.index));
    found.push({ kind, text: match[0] });
    plainFrom = match.index + match[0].length;
  }
  if (plainFrom < text.length) found.push(text.slice(plainFrom));
  return found;
}

function kindOf({ comment, string, number, word }) {
  if (comment !== undefined) return "comment";
  if (string !== undefined) return "string";
  if (number !== undefined) return "number";
  return KEYWORDS.has(word.toLowerCase()) ? "keyword" : null;
}
