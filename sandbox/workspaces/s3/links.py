"""Follow the links of a workspace in a bucket, where names are plain text and nothing resolves them."""

from __future__ import annotations

from collections import deque

from sandbox.errors import UnsafePath
from sandbox.s3 import ObjectNotFound
from sandbox.workspaces.s3.prefix import S3Prefix
from sandbox.workspaces.sync_plan import MAX_TARGET_BYTES

MAX_LINKS = 40
"""Links that one path may go through, as on Linux."""
MAX_STEPS = 256
"""Names of a path with those of its links."""


async def resolve(links: S3Prefix, path: str) -> str:
    """Return the path without links, followed name by name as a kernel does it, also the last one.

    Raises UnsafePath for a link that leads out of the workspace, or for too many of them.
    """
    if not await links.has_any(""):
        return path
    rest, done, followed = deque(path.split("/")), list[str](), 0
    for _ in range(MAX_STEPS):
        if not rest:
            return "/".join(done) or "."
        done = _enter(path, done, rest.popleft())
        target = await read_target(links, "/".join(done)) if done else None
        if target is not None:
            followed += 1
            if target.startswith("/") or followed > MAX_LINKS:
                raise UnsafePath(
                    f"{path!r} goes through a link that leads out of the workspace, or in circles"
                )
            done.pop()
            rest.extendleft(reversed(target.split("/")))
    raise UnsafePath(f"{path!r} goes through too many links and directories")


def _enter(path: str, done: list[str], name: str) -> list[str]:
    """Return the directories after one more name of a path."""
    if name in {"", "."}:
        return done
    if name != "..":
        return [*done, name]
    if not done:
        raise UnsafePath(f"{path!r} goes through a link that leads out of the workspace")
    return done[:-1]


async def refuse_links(links: S3Prefix, path: str) -> None:
    """Raise UnsafePath if a part of the path is a link: a bucket does not write through links."""
    if not await links.has_any(""):
        return
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        place = "/".join(parts[:count])
        if await read_target(links, place) is not None:
            raise UnsafePath(
                f"{place!r} is a link, and a workspace in a bucket does not write through links: write to "
                "its target, or remove the link first"
            )


async def read_target(links: S3Prefix, path: str) -> str | None:
    """Return where a link leads; None if the path is no link."""
    try:
        target, _ = await links.get(path, MAX_TARGET_BYTES)
    except ObjectNotFound:
        return None
    return target.decode("utf-8", "surrogateescape")
