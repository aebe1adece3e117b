"""The handler of the functions: it runs one shell program for each invocation, and each program once.

It is copied into the function image (deploy/lambda/Dockerfile), so it needs Python 3.11 and the standard
library only. The event names, as presigned URLs of objects, a claim (created by the first invocation with the
key; a later one runs nothing), a cancellation (when it exists, the program is killed) and a result (read by
the gateway if the answer of the invocation was lost).
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FILES = Path("/mnt/files")
"""Where the file system is mounted, in the functions that have one."""

TEMPORARY = Path("/tmp")  # noqa: S108 - the only writable directory of a function, emptied for each run
WORKSPACES = TEMPORARY / "workspaces"
"""The image has a link to it at /mnt/workspaces."""

HOME = TEMPORARY / "home"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""The most bytes of output that are kept of a program of the gateway, which limits commands itself."""

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""A larger result is only stored: an answer of Lambda has at most 6 MB."""

RESERVE_SECONDS = 5.0
"""Seconds before the function's time-out in which the program is killed and its result is stored."""

POLL_SECONDS = 0.5
MAX_KILL_ROUNDS = 500
URL_SECONDS = 20.0
_EXISTS = frozenset({409, 412})
_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36

Event = Mapping[str, Any]


def protect_process() -> None:
    """Hide this process's memory and environment from commands, and adopt their orphans (prctl(2)).

    A command has the same user as this process. A process that is not dumpable has a /proc directory that
    only root may read, and cannot be traced.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_SET_DUMPABLE, 0), (_SET_CHILD_SUBREAPER, 1)):
        if libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def handle(event: Event, context: Any) -> Mapping[str, Any]:
    """Run the event's program unless another invocation with its key does; return what it printed."""
    protect_process()
    deadline = time.monotonic() + context.get_remaining_time_in_millis() / 1000 - RESERVE_SECONDS
    if not claim(event["claim"], str(context.aws_request_id)):
        return {"state": "claimed"}
    if event.get("remove"):
        remove_tree(FILES / _plain(event["directory"]))
        return _finish(event, b"")
    request = json.loads(fetch(event["input"])) if event.get("input") else event
    clean_up()
    prepare(event)
    try:
        output = run(event, request, deadline)
        if output is not None:
            return _finish(event, output)
        return _finish(event, b"", state="removed" if is_removed(event) else "killed")
    finally:
        clean_up()


def claim(url: str, owner: str) -> bool:
    """Create the claim; return False if it exists."""
    try:
        _request("PUT", url, owner.encode(), {"If-None-Match": "*"})
    except urllib.error.HTTPError as error:
        if error.code in _EXISTS:
            return False
        raise
    return True


def fetch(url: str) -> bytes:
    """Return the content of an object."""
    return _request("GET", url)


def is_cancelled(url: str) -> bool:
    """Return whether the object of the cancellation exists; an unknown answer counts as no."""
    try:
        _request("GET", url)
    except (urllib.error.URLError, OSError):
        return False
    return True


def is_removed(event: Event) -> bool:
    """Return whether the sandbox's directory has been removed, so that its command must end."""
    return bool(event.get("directory")) and not (FILES / event["directory"]).is_dir()


def _request(
    method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise ValueError("the URL of an object must be http or https")
    given = {"Content-Type": "application/octet-stream", **(headers or {})}
    request = urllib.request.Request(url, data=body, headers=given, method=method)  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=URL_SECONDS) as answer:  # noqa: S310 - checked above
        content: bytes = answer.read()
        return content


def _finish(event: Event, output: bytes, state: str = "done") -> Mapping[str, Any]:
    """Store the result, and return it if it is small enough for an answer."""
    result = {"state": state, "output": output.decode("ascii", "replace")}
    is_small = len(output) <= MAX_ANSWER_BYTES
    try:
        _request("PUT", event["result"], json.dumps(result).encode())
    except OSError:
        if not is_small:
            raise
    return result if is_small else {"state": "stored"}


def _plain(name: str) -> str:
    if not name.isalnum():
        raise ValueError(f"{name!r} is not the name of a directory of sandboxes")
    return name


def prepare(event: Event) -> None:
    """Create the workspace and HOME: on the file system if the event names a directory there."""
    workspace = WORKSPACES / _plain(event["namespace"])
    WORKSPACES.mkdir()
    if event.get("directory"):
        base = FILES / _plain(event["directory"])
        for link, target in ((workspace, base / "workspace"), (HOME, base / "home")):
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(target)
    else:
        workspace.mkdir()
        HOME.mkdir()


def run(event: Event, request: Event, deadline: float) -> bytes | None:
    """Run the program and return its output, or None if the deadline or a cancellation ended it.

    None of its processes is left.
    """
    script = TEMPORARY / "program"
    script.write_text(request["program"], errors="surrogateescape")
    given = base64.b64decode(request.get("stdin", ""))
    words = ["/bin/bash", str(script)]
    environment = {"PATH": PATH, "TMPDIR": str(TEMPORARY)}
    if given:
        path = TEMPORARY / "input"
        path.touch(mode=0o600)
        path.write_bytes(given)
        environment["input"] = str(path)
    with subprocess.Popen(  # noqa: S603 - the account's own program, in its own environment
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment,
        start_new_session=True,
    ) as child:
        reader = OutputReader(child)
        try:
            has_ended = wait(reader, deadline, lambda: is_removed(event) or is_cancelled(event["cancel"]))
        finally:
            kill_descendants()
            reader.join()
    return bytes(reader.output) if has_ended else None


class OutputReader(threading.Thread):
    """Reads what a program prints until its pipe is closed, and keeps the first bytes of it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self.output = bytearray()
        self._child = child
        self.start()

    def run(self) -> None:
        """Read until the end."""
        assert self._child.stdout is not None
        while chunk := os.read(self._child.stdout.fileno(), 1 << 16):
            self.output += chunk[: max(0, MAX_OUTPUT_BYTES - len(self.output))]
        self._child.wait()


def wait(reader: OutputReader, deadline: float, cancelled: Callable[[], bool]) -> bool:
    """Wait until the program has ended; return False if the deadline passes or the run is cancelled."""
    while reader.is_alive() and time.monotonic() < deadline:
        reader.join(POLL_SECONDS)
        if reader.is_alive() and cancelled():
            return False
    return not reader.is_alive()


def kill_descendants() -> None:
    """Kill every process below this one, until none is left; orphans are our children (`protect_process`).

    If processes fork faster than they are killed, this process ends too: Lambda then resets the environment.
    """
    for _round in range(MAX_KILL_ROUNDS):
        if not (found := list(_descendants(os.getpid()))):
            return
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        for pid in found:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.01)
        _reap()
    os._exit(1)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)):
            children.setdefault(parent, []).append(int(entry.name))
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            pending.append(pid)
            yield pid


def _parent(entry: Path) -> int | None:
    """Return the parent of a live process."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)


def clean_up() -> None:
    """Kill what an earlier run left and empty the temporary directory."""
    kill_descendants()
    for entry in TEMPORARY.iterdir():
        remove_tree(entry)


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a directory with its content, whatever its permissions."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    for directory, names, _files in os.walk(path):
        for name in names:
            if not Path(directory, name).is_symlink():
                Path(directory, name).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
