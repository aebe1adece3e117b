"""Search the files of a stored workspace for a literal text or by their names.

The search works on the port alone, so every store searches alike. A text is compared as it is and a glob is a
state machine (`GlobPattern`): no pattern of others can make a search slow. Files, bytes, matches and time are
bounded; a search that reaches a bound returns what it found and says that it is not complete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.environments.glob_pattern import GlobPattern
from sandbox.errors import UnsafePath
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.sync_plan import FileListing, regular_files

MAX_TEXT_LENGTH = 1000
MAX_MATCHES = 1000
MAX_FILES = 20_000
"""Files that one search reads."""
MAX_FILE_BYTES = 2 * 1024 * 1024
"""The part of a file that is searched."""
MAX_BYTES = 128 * 1024 * 1024
MAX_SECONDS = 20.0
MAX_LINE_LENGTH = 500
_CONCURRENCY = 8
_NAMES_PER_STEP = 500
_BINARY_PROBE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceQuery:
    """What to search: files below `path` whose names match `glob`, and lines in them that contain `text`.

    A glob without a slash matches names in every directory. At least one of both is given.
    """

    path: str = "."
    text: str = ""
    glob: str = ""
    ignore_case: bool = False
    limit: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMatch:
    """A file, or one line of it; lines are counted from 1."""

    path: str
    line: int | None = None
    text: str | None = None


@dataclass(slots=True, kw_only=True)
class WorkspaceSearchResult:
    """The matches by path and line; `truncated` says that there may be more."""

    matches: list[FileMatch] = field(default_factory=list)
    files: int = 0
    truncated: bool = False


async def search(store: WorkspaceStore, namespace: str, query: WorkspaceQuery) -> WorkspaceSearchResult:
    """Search a workspace; raises ValueError for an invalid query, FileNotFoundError and SandboxError."""
    glob = check(query)
    listed = regular_files(await store.replica(namespace).list())
    if query.path != "." and query.path not in listed:
        await store.stat(namespace, query.path)
    paths = await _select(listed, query, glob)
    if not query.text:
        matches = [FileMatch(path=path) for path in paths[: query.limit]]
        return WorkspaceSearchResult(matches=matches, files=len(paths), truncated=len(paths) > query.limit)
    return await _search_contents(store, namespace, query, paths, listed)


def check(query: WorkspaceQuery) -> GlobPattern | None:
    """Return the pattern of a query; raises ValueError for an invalid query."""
    if not query.text and not query.glob:
        raise ValueError("text or glob is required")
    if len(query.text) > MAX_TEXT_LENGTH or "\n" in query.text:
        raise ValueError(f"text must be one line of at most {MAX_TEXT_LENGTH} characters")
    if not query.glob:
        return None
    return GlobPattern(query.glob if "/" in query.glob else f"**/{query.glob}")


async def _select(listed: FileListing, query: WorkspaceQuery, glob: GlobPattern | None) -> Sequence[str]:
    below = "" if query.path == "." else f"{query.path}/"
    found = []
    for number, path in enumerate(listed, 1):
        if (path.startswith(below) and (glob is None or glob.matches(path[len(below) :]))) or (
            path == query.path and glob is None
        ):
            found.append(path)
        if number % _NAMES_PER_STEP == 0:
            await asyncio.sleep(0)
    return sorted(found)


async def _search_contents(
    store: WorkspaceStore, namespace: str, query: WorkspaceQuery, paths: Sequence[str], listed: FileListing
) -> WorkspaceSearchResult:
    result, left, deadline = WorkspaceSearchResult(), MAX_BYTES, time.monotonic() + MAX_SECONDS
    chosen, result.truncated = paths[:MAX_FILES], len(paths) > MAX_FILES
    for start in range(0, len(chosen), _CONCURRENCY):
        batch = chosen[start : start + _CONCURRENCY]
        left -= sum(min(listed[path].size, MAX_FILE_BYTES) for path in batch)
        if left < 0 or time.monotonic() > deadline or len(result.matches) >= query.limit:
            result.truncated = True
            break
        result.truncated |= any(listed[path].size > MAX_FILE_BYTES for path in batch)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_search_file(store, namespace, query, path)) for path in batch]
        for task in tasks:
            result.matches += task.result()
        result.files += len(batch)
    result.truncated |= len(result.matches) > query.limit
    del result.matches[query.limit :]
    return result


async def _search_file(
    store: WorkspaceStore, namespace: str, query: WorkspaceQuery, path: str
) -> Sequence[FileMatch]:
    try:
        content = await store.read(namespace, path, MAX_FILE_BYTES)
    except (OSError, UnsafePath):
        return []  # removed or replaced since the listing
    return await asyncio.to_thread(lambda: list(_matching_lines(path, content, query)))


def _matching_lines(path: str, content: bytes, query: WorkspaceQuery) -> Iterator[FileMatch]:
    """Yield the lines of a text file that contain the text, a little more than the limit at most."""
    if b"\0" in content[:_BINARY_PROBE]:
        return
    wanted, text, found = query.text, content.decode("utf-8", "replace"), 0
    compared = text.lower() if query.ignore_case else text
    wanted = wanted.lower() if query.ignore_case else wanted
    if wanted not in compared:
        return
    lines = zip(text.split("\n"), compared.split("\n"), strict=True)
    for number, (line, line_compared) in enumerate(lines, 1):
        if wanted in line_compared:
            yield FileMatch(path=path, line=number, text=line.rstrip("\r")[:MAX_LINE_LENGTH])
            found += 1
            if found > query.limit:
                return
