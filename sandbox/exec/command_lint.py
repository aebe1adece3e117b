"""What is politely refused before a provider sees it: advice to the model, never the boundary.

A shell's language cannot be judged by looking at it (SECURITY M11): whoever wants past these functions gets
past them, into the sandbox, which is the boundary. They exist so that an honest model hears early and in
plain words that a runtime is not offered or that its files are elsewhere.
"""

from __future__ import annotations

import re
import shlex
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
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1.*?^\s*\2\s*$", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"^/[\w.+@-]+(/[\w.+@*-]*)*$")
_SYSTEM = re.compile(r"^/(etc|root|home|var|proc|sys|opt|usr|boot|srv|run|mnt|lib)(/[\w.+@*-]+)*$")
_PATTERNS = frozenset({"sed", "awk", "gawk", "mawk", "perl", "grep", "egrep", "rg", "jq"})
"""Programs whose arguments are often patterns between slashes: only well-known directories count there."""
_CLIMBS = re.compile(r"(^|/)\.\.(/|$)")


def missing_runtime(script: str, runtimes: Collection[str]) -> str | None:
    """Say why `script` obviously invokes a runtime that is not among `runtimes`, or None."""
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
    """Say why `script` obviously reaches outside the working directory, or None.

    Looked for: absolute paths other than programs, /tmp and /dev/null's family, `..` that climbs, and a
    scanner such as find let loose on the whole filesystem.
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
        return f"{word!r} climbs out of the working directory: use paths below it"
    if absolute.match(path) and not path.startswith(_ALLOWED_ROOTS):
        return f"{word!r} is an absolute path: your files are in the working directory, use relative paths"
    return None


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script as word lists; nothing where the quoting does not add up."""
    for line in _HEREDOC.sub("<<heredoc", script).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|(){}")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue
        yield from _split(words)


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
