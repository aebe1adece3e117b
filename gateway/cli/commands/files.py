"""Commands on the files of workspaces."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import CommandFailed, GatewayUnreachable, UsageError
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_json, print_line, print_record, print_rows

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

files = group("Files of workspaces.")

PART_BYTES = 4 * 1024 * 1024
"""Larger files are uploaded in parts of this size."""

RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Pauses before an upload continues after a lost connection."""

Workspace = Annotated[str, typer.Argument(help="The workspace's name or id.")]
FilePath = Annotated[str, typer.Argument(help="A path relative to the workspace.")]
Target = Annotated[str, typer.Argument(help="The new path, which must be free.")]


def _resource(workspace: str, path: str = ".", *, operation: str = "") -> tuple[str, ...]:
    """Return the segments of a request's path; `..` in it would name another resource of the API."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise UsageError(f"{path} contains `..`: a path is relative to the workspace")
    return ("accounts", "me", "workspaces", workspace, f"files{operation}", *parts)


@remote(files, "ls")
async def list_directory(
    gateway: GatewayClient, workspace: Workspace, path: FilePath = ".", *, as_json: Json = False
) -> None:
    """List a directory."""
    columns: Columns = {"name": "name", "kind": "kind", "size": "size", "modified": "modified_at"}
    if path.strip("/") not in {"", "."}:
        entry = await _stat(gateway, workspace, path)
        if entry["kind"] != "directory":
            print_rows([entry], columns, as_json=as_json, empty="no files")
            return
    rows = await gateway.list_all(*_resource(workspace, path))
    print_rows(rows, columns, as_json=as_json, empty="no files")


@remote(files, "stat")
async def describe(
    gateway: GatewayClient, workspace: Workspace, path: FilePath = ".", *, as_json: Json = False
) -> None:
    """Describe a file or directory."""
    print_record(await _stat(gateway, workspace, path), as_json=as_json)


async def _stat(gateway: GatewayClient, workspace: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = await gateway.get(*_resource(workspace, operation=":stat"), path=path)
    return found


@remote(files, "cat")
async def print_file(gateway: GatewayClient, workspace: Workspace, path: FilePath) -> None:
    """Write the bytes of a file to stdout."""
    content, is_list = await gateway.download(*_resource(workspace, path))
    if is_list:
        raise CommandFailed(f"{path} is a directory: list it with `dovecote files ls {workspace} {path}`")
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


@remote(files, "put")
async def upload(
    gateway: GatewayClient,
    workspace: Workspace,
    path: FilePath,
    source: Annotated[Path | None, typer.Argument(help="A local file; without it, stdin is read.")] = None,
) -> None:
    """Write a file of the workspace from a local file or stdin; an existing one is replaced."""
    try:
        content = source.read_bytes() if source is not None else sys.stdin.buffer.read()
    except OSError as error:
        raise CommandFailed(f"{source} cannot be read: {error.strerror}") from error
    if len(content) <= PART_BYTES:
        await gateway.upload(*_resource(workspace, path), content=content)
    else:
        await _upload_in_parts(gateway, workspace, "/".join(_resource(workspace, path)[5:]), content)
    print_line(f"{path}: {len(content)} bytes written")


async def _upload_in_parts(gateway: GatewayClient, workspace: str, path: str, content: bytes) -> None:
    """Upload a file part by part; after a lost connection, go on with what the gateway has."""
    uploads = ("accounts", "me", "workspaces", workspace, "uploads")
    digest = hashlib.sha256(content).hexdigest()
    upload = await gateway.post(*uploads, body={"path": path, "size": len(content), "sha256": digest})
    pauses = list(RETRY_SECONDS)
    while not upload["complete"]:
        try:
            part = content[upload["offset"] : upload["offset"] + PART_BYTES]
            upload = await gateway.send_part(*uploads, upload["id"], content=part, offset=upload["offset"])
        except GatewayUnreachable:
            if not pauses:
                raise
            await asyncio.sleep(pauses.pop(0))
            upload = await gateway.get(*uploads, upload["id"])


@remote(files, "rm")
async def remove(gateway: GatewayClient, workspace: Workspace, path: FilePath) -> None:
    """Remove a file, or a directory with everything in it."""
    if not _resource(workspace, path)[5:]:
        raise UsageError("the workspace itself is removed with `dovecote workspaces rm`")
    await gateway.delete(*_resource(workspace, path))
    print_line(f"{path} removed")


@remote(files, "mkdir")
async def make_directory(gateway: GatewayClient, workspace: Workspace, path: FilePath) -> None:
    """Create a directory and its parents."""
    await gateway.post(*_resource(workspace, operation=":mkdir"), body={"path": path})
    print_line(f"{path} is a directory")


@remote(files, "mv")
async def rename(gateway: GatewayClient, workspace: Workspace, path: FilePath, to: Target) -> None:
    """Rename or move a file or directory."""
    await gateway.post(*_resource(workspace, operation=":rename"), body={"path": path, "to": to})
    print_line(f"{path} is now {to}")


@remote(files, "cp")
async def copy(gateway: GatewayClient, workspace: Workspace, path: FilePath, to: Target) -> None:
    """Copy a file or directory."""
    await gateway.post(*_resource(workspace, operation=":copy"), body={"path": path, "to": to})
    print_line(f"{path} is copied to {to}")


@remote(files, "search")
async def search(
    gateway: GatewayClient,
    workspace: Workspace,
    text: Annotated[str, typer.Argument(help="The text, compared as it is; may be empty with --glob.")] = "",
    path: FilePath = ".",
    *,
    glob: Annotated[str, typer.Option(help="Only files whose names match, such as *.py.")] = "",
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Ignore the case.")] = False,
    limit: Annotated[int, typer.Option(help="The most matches, up to 1000.")] = 200,
    as_json: Json = False,
) -> None:
    """Print the lines that contain a text, or the files whose names match."""
    body = {"text": text, "glob": glob, "path": path, "ignore_case": ignore_case, "limit": limit}
    found = await gateway.post(*_resource(workspace, operation=":search"), body=body)
    if as_json:
        print_json(found)
        return
    for one in found["items"]:
        line = f":{one['line']}:{one['text']}" if one["line"] is not None else ""
        print_line(f"{one['path']}{line}")
    if found["truncated"]:
        print_line("there may be more matches: narrow the search or raise --limit", err=True)
