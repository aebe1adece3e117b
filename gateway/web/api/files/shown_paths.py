"""Names of files that are not UTF-8: how clients see them, and which file they mean by what they see.

A file system has names of any bytes. JSON and URLs have text, so such a name is shown with U+FFFD in place of
its bytes, and a path with U+FFFD names the only file that is shown so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import quote, unquote

from gateway.web.http.problems import HttpProblem
from sandbox.paths import FileEntry

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

ListDirectory = Callable[[str], Awaitable[Sequence[FileEntry]]]
"""Return the entries of a directory, by its path below the workspace."""


def shown(name: str) -> str:
    """Return a name or path as text that can be stored and sent."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_cursor(name: str) -> str:
    """Return the position behind a name, whatever its bytes are."""
    return quote(name, errors="surrogateescape")


def from_cursor(cursor: str) -> str:
    """Return the name of a position."""
    return unquote(cursor, errors="surrogateescape")


async def stored_path(path: str, list_directory: ListDirectory) -> str:
    """Return the path whose shown form this is; raises HttpProblem if several files are shown so."""
    if _REPLACEMENT not in path:
        return path
    found: list[str] = []
    for name in path.split("/"):
        names = [name]
        if _REPLACEMENT in name:
            entries = await list_directory("/".join(found) or ".")
            names = [one.name for one in entries if shown(one.name) == name]
        if len(names) > 1 and name not in names:
            detail = f"{len(names)} files are shown as {name!r}: rename them with a command in the sandbox"
            raise HttpProblem(409, detail)
        found.append(name if name in names or not names else names[0])
    return "/".join(found)
