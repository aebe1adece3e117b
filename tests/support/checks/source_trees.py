"""The Python files of the repository as syntax trees: each is parsed and walked once in a process.

The trees are kept until the process ends, outside the reach of the garbage collector.
"""

from __future__ import annotations

import ast
import gc
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar, cast

ROOT = Path(__file__).parents[3]
PACKAGES = ("gateway", "delivery", "channels", "sandbox", "egress", "dovecote")
EVERYTHING = (*PACKAGES, "tests", "bench", "examples", "scripts")

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Source:
    """A Python file: its name below the root, its text and its tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def parts(self) -> list[str]:
        """The parts of its name."""
        return self.name.split("/")

    def nodes(self, kind: type[Node]) -> list[Node]:
        """Return all nodes of a type, in no order."""
        return cast("list[Node]", self._nodes.get(kind, []))

    @cached_property
    def _nodes(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            found[type(node)].append(node)
            for value in vars(node).values():
                among = value if isinstance(value, list) else (value,)
                waiting.extend(one for one in among if isinstance(one, ast.AST))
        return found


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files of the repository, the untracked ones that are not ignored too.

    Without git, or in a copy that is no clone, these are all files that `.gitignore` does not name.
    """
    return tuple(path for name in files_of_git() or files_not_ignored() if (path := ROOT / name).is_file())


def files_of_git() -> list[str] | None:
    """Return the names of the files that git lists, or None without git or outside of a clone."""
    listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        done = subprocess.run(["git", *listing], cwd=ROOT, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return [name for name in done.stdout.decode().split("\0") if name]


def files_not_ignored() -> list[str]:
    """Return the names that git would list; each line of `.gitignore` names a file or a directory."""
    ignored = [".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())]
    found: list[str] = []
    for parent, directories, files in os.walk(ROOT):
        directories[:] = [name for name in directories if not _matches(name, ignored)]
        below = Path(parent).relative_to(ROOT)
        found += [(below / name).as_posix() for name in files if not _matches(name, ignored)]
    return sorted(found)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def sources(*tops: str) -> Iterator[Source]:
    """Yield the Python files below these folders of the root, or all."""
    return (source for top in tops or _parsed() for source in _parsed()[top])


@cache
def _parsed() -> dict[str, list[Source]]:
    """Parse everything at once: while the trees grow, each look of the garbage collector costs more."""
    found: dict[str, list[Source]] = defaultdict(list)
    gc.disable()
    try:
        for path in tracked():
            if path.suffix == ".py":
                name, text = path.relative_to(ROOT).as_posix(), path.read_text()
                found[name.split("/")[0]].append(Source(name, text, ast.parse(text)))
        gc.freeze()
    finally:
        gc.enable()
    return found
