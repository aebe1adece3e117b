"""The specification of a job for its supervisor, and the files that the supervisor writes.

The specification is passed through a pipe and never written to disk: it holds the account's variables and the
job's token. A job's directory holds

    lock        locked (flock) by the supervisor while it lives; a pid alone never decides that
    started     {"pid", "boot", "group", "rests", "proxied"}, written first: a job starts at most once
    output      the last bytes of stdout and stderr merged; `truncated` beside it if there were more
    exit        {"exit_code"}, written once, when no process of the job lives any more
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LOCK, STARTED, OUTPUT, TRUNCATED, EXIT = "lock", "started", "output", "truncated", "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """How the end of a job is reported: a program that reads `payload` and prints the HTTP status it got."""

    argv: list[str]
    secret: list[str]
    socket: str
    path: str
    token: str
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job for the supervisor: the command line before and after bubblewrap's descriptor, and the limits."""

    prefix: list[str]
    program: list[str]
    secret: list[str]
    suffix: list[str]
    environment: dict[str, str]
    directory: str
    joins: list[str]
    group: str | None
    timeout: float
    output_limit: int
    boot: str
    rests: bool
    proxied: bool
    post: CompletionRequest

    def encode(self) -> bytes:
        """Encode the specification for the pipe."""
        return json.dumps(asdict(self)).encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, raw: bytes) -> JobSpec:
        """Decode the specification that `encode` wrote."""
        fields: dict[str, Any] = json.loads(raw)
        return cls(**{**fields, "post": CompletionRequest(**fields["post"])})


def memfd_of(words: Sequence[str]) -> int:
    """Return a descriptor from which bubblewrap reads `words` (`--args`), each ended by NUL."""
    descriptor = os.memfd_create("arguments")
    os.write(descriptor, "".join(f"{word}\0" for word in words).encode("utf-8", "surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def acquire_lock(directory: Path) -> int | None:
    """Return a descriptor that holds the job's lock until it is closed, or None if a supervisor holds it."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return _locked(descriptor, fcntl.LOCK_EX)


def is_supervised(directory: Path) -> bool:
    """Return whether a supervisor of the job is alive; writes nothing, as the disk may only read now.

    The lock is a shared one: on NFS an exclusive one needs a file that is open for writing (flock(2)).
    """
    try:
        descriptor = _locked(os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _locked(descriptor: int, kind: int) -> int | None:
    """Lock a file, and return its descriptor; closes it and returns None if another process has the lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
