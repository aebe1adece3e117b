"""Reject commands that obviously cannot work, before a sandbox is used. This is advice, not a boundary.

A shell script cannot be judged by its text (SECURITY M11), so these checks can be evaded; the sandbox is the
boundary. They give the model an early, plain error when a runtime is missing or a path is outside its
workspace.

The checks run on the event loop and the script is untrusted. Every step takes time linear in the length of
the script: patterns have no nested or adjacent repetitions over the same characters, and
tests/unit/sandboxes/test_command_lint_cost.py measures them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator

_RUNTIMES = {
    "python": re.compile(r"^(python[0-9.]*|pip[0-9.]*|uv|uvx|pypy[0-9.]*)$"),
    "node": re.compile(r"^(node|nodejs|npm|npx|yarn|pnpm|corepack)$"),
}
_SEPARATORS = frozenset({";", "&", "|", "&&", "||", "(", ")", "|&", ";;", "{", "}"})
_PREFIXES = frozenset({"sudo", "env", "nohup", "time", "exec", "command", "then", "do", "else", "!", "xargs"})
_SCANNERS = frozenset({"find", "du", "ls", "grep", "rg", "fd", "tree", "locate"})
_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
)
_ALLOWED_ROOTS = (*_DEVICES, "/dev/fd/", "/tmp", "/usr/bin/", "/bin/", "/mnt/workspaces/")  # noqa: S108
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_HEREDOC = re.compile(r"(?<!<)<<(?!<)-?[ \t]*(?P<quote>['\"]?)(?P<end>\w++)(?P=quote)")
"""The operator of a here-document; `<<<` is a here-string."""
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]++)
    |(?P<comment>\#.*+)
    |(?P<operator>[;&|(){}]++)
    |(?P<plain>[^ \t\r\n#;&|(){}'"\\]++)
    |\\(?P<escaped>.)
    |'(?P<single>[^']*+)'
    |"(?P<double>(?:[^"\\]++|\\.)*+)"
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD_PARTS = frozenset({"plain", "escaped", "single", "double"})
_ESCAPED = re.compile(r'\\(["\\])')
_PATH = re.compile(r"^/[\w.+@-]+(/[\w.+@*-]*)*$")
_SYSTEM = re.compile(r"^/(etc|root|home|var|proc|sys|opt|usr|boot|srv|run|mnt|lib)(/[\w.+@*-]+)*$")
_PATTERNS = frozenset({"sed", "awk", "gawk", "mawk", "perl", "grep", "egrep", "rg", "jq"})
"""Programs whose arguments are often patterns between slashes: only well-known directories are rejected."""
_CLIMBS = re.compile(r"(^|/)\.\.(/|$)")


def missing_runtime(script: str, runtimes: Collection[str]) -> str | None:
    """Return why `script` obviously invokes a runtime that is not among `runtimes`, or None."""
    offered = ", ".join(runtimes) or "none"
    for words in _commands(script):
        program = words[0].rsplit("/", 1)[-1]
        for runtime, pattern in _RUNTIMES.items():
            if runtime not in runtimes and pattern.match(program):
                return (
                    f"{program} needs the runtime {runtime!r}, which this sandbox does not offer ({offered})"
                )
    return None


def path_outside_workspace(script: str) -> str | None:
    """Return why `script` obviously reaches outside the working directory, or None.

    Rejected are absolute paths other than programs, /tmp and devices such as /dev/null, paths with `..` that
    lead outside, and a search (find, ls, grep …) of the whole file system.
    """
    for words in _commands(script):
        absolute = _SYSTEM if words[0].rsplit("/", 1)[-1] in _PATTERNS else _PATH
        found = _scans_filesystem(words) or next(
            filter(None, (_leaves_workspace(word, absolute) for word in words[1:])), None
        )
        if found:
            return found
    return None


def _scans_filesystem(words: list[str]) -> str | None:
    if words[0].rsplit("/", 1)[-1] in _SCANNERS and "/" in words[1:]:
        return f"{words[0]} would scan the whole filesystem: start from the working directory, '.'"
    return None


def _leaves_workspace(word: str, absolute: re.Pattern[str]) -> str | None:
    path = word.lstrip("<>&0123456789")
    if "://" in path or not path:
        return None
    if _CLIMBS.search(path):
        return f"{word!r} leads out of the working directory: use paths below it"
    if absolute.match(path) and not path.startswith(_ALLOWED_ROOTS):
        return f"{word!r} is an absolute path: your files are in the working directory, use relative paths"
    return None


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script as lists of words; skip lines whose quotes are not closed."""
    for line in _without_heredocs(script):
        words = _words(line)
        if words:
            yield from _split(words)


def _without_heredocs(script: str) -> Iterator[str]:
    """Yield the lines of a script without here-documents; one whose end is missing is kept as commands."""
    lines = script.splitlines()
    last = {line.strip(): number for number, line in enumerate(lines)}
    ends: deque[str] = deque()
    for number, line in enumerate(lines):
        if ends:
            if line.strip() == ends[0]:
                ends.popleft()
            continue
        openers = [one for one in _HEREDOC.finditer(line) if last.get(one["end"], -1) > number]
        ends.extend(opener["end"] for opener in openers)
        yield line[: openers[0].start()] if openers else line


def _words(line: str) -> list[str]:
    """Split a line as `shlex` does with these operators; [] when a quote or an escape is incomplete."""
    words: list[str] = []
    parts: list[str] = []
    position = 0
    while position < len(line):
        token = _TOKEN.match(line, position)
        if token is None:
            return []
        position = token.end()
        kind = str(token.lastgroup)
        if kind in _WORD_PARTS:
            text = token[kind]
            parts.append(_ESCAPED.sub(r"\1", text) if kind == "double" else text)
            continue
        if parts:
            words.append("".join(parts))
            parts.clear()
        if kind == "operator":
            words.append(token["operator"])
    return [*words, "".join(parts)] if parts else words


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if word in _SEPARATORS:
            if command:
                yield command
            command = []
        elif command or not (_ASSIGNMENT.match(word) or word in _PREFIXES):
            command.append(word)
    if command:
        yield command
