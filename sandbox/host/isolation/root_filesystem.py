"""The root file system of a sandbox: read-only programs and the files in /etc that they need.

Every mount costs about a quarter of a millisecond per start, so small files are copied into one directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

USER = "sandbox"
HOME = f"/home/{USER}"
UID = 1000
HOST_NAME = "sandbox"

_GENERATED = {
    "passwd": (
        f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{UID}:{UID}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
    "resolv.conf": "",
}
_COPIED = ("nsswitch.conf", "ld.so.cache", "localtime", "ssl/openssl.cnf", "mime.types")
_BOUND = (
    "alternatives",
    "ssl/certs",
    "ca-certificates/extracted",
    "pki/ca-trust",
    "pki/tls/certs",
    "crypto-policies",
)
"""/etc/ssl and /etc/pki are never mounted whole: both may hold private keys that our user can read."""

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_PROC_READ_ONLY = ("/proc/sys", "/proc/acpi", "/proc/scsi")


def write_etc(directory: Path) -> None:
    """Write the /etc that all sandboxes share."""
    for name in _BOUND:
        if Path("/etc", name).is_dir():
            (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "ssl").mkdir(parents=True, exist_ok=True)
    contents = {name: text.encode() for name, text in _GENERATED.items()}
    for name in _COPIED:
        with suppress(OSError):
            contents[name] = Path("/etc", name).read_bytes()
    for name, content in contents.items():
        fresh = directory / f"{name}.{os.getpid()}"
        fresh.write_bytes(content)
        fresh.chmod(0o644)
        fresh.rename(directory / name)


@cache
def program_arguments(etc: Path) -> Sequence[str]:
    """Return the bubblewrap arguments for programs and /etc; this host has the same ones for each sandbox."""
    return tuple(_program_arguments(etc))


def _program_arguments(etc: Path) -> Iterator[str]:
    yield from system_arguments()
    yield from ("--ro-bind", str(etc), "/etc")
    for name in _BOUND:
        if (etc / name).is_dir():
            yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def system_arguments() -> Iterator[str]:
    """Yield the bubblewrap arguments for the programs and libraries of this host."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        elif path.is_dir():
            yield from ("--ro-bind", name, name)


def kernel_arguments() -> Iterator[str]:
    """Yield the bubblewrap arguments for /proc and /dev.

    The sandboxed processes of a root gateway own root's files in /proc, with or without capabilities:
    /proc/sys/kernel/core_pattern alone would let them escape. Those of an ordinary user own the settings of
    their namespaces (/proc/sys/kernel/pid_max, /proc/sys/fs/mqueue). Both become read-only by a bind mount.
    bubblewrap itself protects /proc/irq, /proc/bus and /proc/sysrq-trigger.
    """
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _PROC_READ_ONLY:
        if Path(name).exists():
            yield from ("--ro-bind", name, name)
