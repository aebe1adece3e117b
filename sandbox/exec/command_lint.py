"""Reject commands that obviously cannot work, before a sandbox is used. This is advice, not a boundary.

A shell script cannot be judged by its text (SECURITY M11), so these checks can be evaded; the sandbox is the
boundary. They give the model an early, plain error when a runtime is missing or a path is outside its
workspace.

The checks run on the event loop and the script is untrusted. Every step takes time linear in the length of
the script: patterns have no nested or adjacent repetitions over the same characters, and
tests/unit/sandboxes/test_command_lint_cost.py measures them.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterator

_RUNTIMES = {
    "python": re.compile(r"^(python[0-9.]*|pip[0-9.]*|uv|uvx|pypy[0-9.]*)$"),
    "node": re.compile(r"^(node|nodejs|npm|npx|yarn|pnpm|corepack)$"),
}
_OPERATORS = ";&|(){}"
_PREFIXES = frozenset({"sudo", "env", "nohup", "time", "exec", "command", "then", "do", "else", "!", "xargs"})
_SCANNERS = frozenset({"find", "du", "grep", "rg", "fd", "tree", "locate"})
_READABLE_PATHS = (
    *("/etc/os-release", "/etc/lsb-release", "/etc/debian_version", "/etc/issue", "/etc/hostname"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services", "/etc/mime.types"),
    *("/etc/timezone", "/etc/localtime", "/etc/profile", "/etc/alternatives", "/etc/ssl/certs"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/loadavg", "/proc/uptime", "/proc/version"),
    *("/proc/mounts", "/proc/filesystems", "/proc/stat", "/proc/net", "/proc/sys", "/sys/class"),
    *("/sys/devices", "/sys/fs/cgroup", "/var/tmp", "/mnt/workspaces", "/run/shm"),  # noqa: S108
)
"""Facts about the system that ordinary commands read, and places for temporary files."""
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
    |"(?P<double>(?:[^"\\]++|\\.)*)"
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD_PARTS = frozenset({"plain", "escaped", "single", "double"})
_ESCAPED = re.compile(r'\\(["\\])')
_SYSTEM = re.compile(r"^/(etc|root|home|var|proc|sys|boot|srv|run|mnt)(?:/[\w.+@*-]++)*$")
"""Directories that hold what belongs to the system or to other people."""
_CLIMBS = re.compile(r"(^|/)\.\.(/|$)")
_REDIRECTION = re.compile(r"^[0-9]*[<>]++[&|]?")
_PATTERNS = frozenset({"sed", "awk", "gawk", "mawk", "perl", "grep", "egrep", "rg", "jq", "tr", "expr"})
"""Programs whose first operand is usually a pattern and no path."""
_PRINTERS = frozenset({"echo", "printf"})
"""Programs whose operands are text."""
_ELSEWHERE = frozenset({"-C", "--directory", "--prefix", "--cwd"})
"""Options that run a program in another directory."""


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

    Rejected are paths into the system's own directories other than common facts such as /etc/os-release,
    paths with `..` that lead above the directory where the script starts, and a search (find, grep …) of the
    whole file system. `cd` is followed; after a `cd` to an unknown place, `..` is not judged.
    """
    for words, depth in _located_commands(script):
        operands = list(_operands(words))
        climbs = None if _ELSEWHERE.intersection(words) else depth
        found = _scans_filesystem(words) or next(
            filter(None, (_leaves_workspace(operand, climbs) for operand in operands)), None
        )
        if found:
            return found
    return None


def _scans_filesystem(words: list[str]) -> str | None:
    program = words[0].rsplit("/", 1)[-1]
    is_scan = program in _SCANNERS or (program == "ls" and any(word.startswith("-R") for word in words))
    if is_scan and "/" in words[1:] and "-maxdepth" not in words:
        return f"{words[0]} would scan the whole filesystem: start from the working directory, '.'"
    return None


def _operands(words: list[str]) -> Iterator[str]:
    """Yield the words of a command that may name files, and the files of redirections."""
    program = words[0].rsplit("/", 1)[-1]
    is_pattern_due = program in _PATTERNS
    for is_redirected, word in _without_redirections(words[1:]):
        if is_pattern_due and not is_redirected and not word.startswith("-"):
            is_pattern_due = False
        elif is_redirected or program not in _PRINTERS:
            yield word


def _without_redirections(words: list[str]) -> Iterator[tuple[bool, str]]:
    """Yield the words but for operators and here-strings, each with whether it is a redirection's file."""
    rest = iter(words)
    for word in rest:
        path = _REDIRECTION.sub("", word)
        is_redirected = path != word
        if is_redirected and not path:
            path = next(rest, "")
        if path and "://" not in path and not word.startswith("<<<"):
            yield is_redirected, path


def _leaves_workspace(path: str, depth: int | None) -> str | None:
    if depth is not None and _CLIMBS.search(path) and not _is_unknown(path):
        if depth + _levels(path)[0] < 0:
            return f"{path!r} leads out of the working directory: use paths below it"
        return None
    plain = posixpath.normpath(path)
    if _SYSTEM.match(plain) and not _is_readable(plain):
        return f"{path!r} is outside of your working directory: your files are there, use relative paths"
    return None


def _is_readable(path: str) -> bool:
    return any(path == readable or path.startswith(f"{readable}/") for readable in _READABLE_PATHS)


def _is_unknown(path: str) -> bool:
    """Return whether only the shell knows where a path begins."""
    return path.startswith(("/", "~", "-")) or "$" in path or "`" in path


def _levels(path: str) -> tuple[int, int]:
    """Return the lowest and the last level of a relative path; its start is level 0."""
    level = lowest = 0
    for part in path.split("/"):
        if part == "..":
            level -= 1
        elif part not in {"", "."}:
            level += 1
        lowest = min(lowest, level)
    return lowest, level


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script as lists of words; skip lines whose quotes are not closed."""
    for words, _depth in _located_commands(script):
        yield words


def _located_commands(script: str) -> Iterator[tuple[list[str], int | None]]:
    """Yield the simple commands of a script, each with the level of its directory; None: unknown."""
    depth: int | None = 0
    outer: list[int | None] = []
    command: list[str] = []
    for word in _all_words(script):
        if not _is_operator(word):
            if command or not (_ASSIGNMENT.match(word) or word in _PREFIXES):
                command.append(word)
            continue
        if command:
            yield command, depth
            depth = _level_after(command, depth)
            command = []
        depth = _level_outside(word, depth, outer)


def _all_words(script: str) -> Iterator[str]:
    for line in _without_heredocs(script):
        yield from _words(line)
        yield ";"


def _is_operator(word: str) -> bool:
    return bool(word) and not word.strip(_OPERATORS)


def _level_outside(operator: str, depth: int | None, outer: list[int | None]) -> int | None:
    """Return the level of the directory behind an operator; subshells begin and end in `outer`."""
    for letter in operator:
        if letter == "(":
            outer.append(depth)
        elif letter == ")" and outer:
            depth = outer.pop()
    return depth


def _level_after(command: list[str], depth: int | None) -> int | None:
    """Return the level of the directory in which the next command runs."""
    if command[0] in {"pushd", "popd"}:
        return None
    if command[0] != "cd" or depth is None:
        return depth
    target = next((word for word in command[1:] if word not in {"--", "-P", "-L"}), None)
    return None if target is None or _is_unknown(target) else depth + _levels(target)[1]


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
