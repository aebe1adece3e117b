"""The system calls that a sandboxed command may make, as a filter for bubblewrap's `--seccomp`.

A classic BPF program over `struct seccomp_data` (seccomp(2)). What it does not know is denied: another
architecture's calls and numbers beyond the reviewed ones get ENOSYS, sockets of other families than unix,
IPv4, IPv6 and netlink get EAFNOSUPPORT, and the calls of `DENIED` get EPERM. So do calls that give a file
a setuid or setgid bit: on the host the file belongs to the gateway's user, which may be root. Numbers are
those of the kernel's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

LAST_REVIEWED = 462
"""The highest call number that was reviewed (mseal, Linux 6.10); from 424 on all architectures share."""

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Socket families that a network namespace contains; AF_VSOCK, for one, reaches the hypervisor."""

DENIED: Mapping[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""Calls that a command in a sandbox never needs, with their numbers on x86_64 and aarch64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeCall:
    """A call with a file mode: its numbers, and which argument is the mode.

    If it has `flags`, the mode counts only where they create a file.
    """

    numbers: tuple[int | None, int | None]
    mode: int
    flags: int | None = None


MODE_CALLS: Mapping[str, ModeCall] = {
    "chmod": ModeCall(numbers=(90, None), mode=1),
    "creat": ModeCall(numbers=(85, None), mode=1),
    "fchmod": ModeCall(numbers=(91, 52), mode=1),
    "fchmodat": ModeCall(numbers=(268, 53), mode=2),
    "fchmodat2": ModeCall(numbers=(452, 452), mode=2),
    "mknod": ModeCall(numbers=(133, None), mode=1),
    "mknodat": ModeCall(numbers=(259, 33), mode=2),
    "open": ModeCall(numbers=(2, None), mode=2, flags=1),
    "openat": ModeCall(numbers=(257, 56), mode=3, flags=2),
}
"""Calls that can set a file's setuid or setgid bit. mkdir(2) drops both."""

OPENAT2 = 437
"""openat2(2) has its mode in memory, which a filter cannot read, so programs are told that it is missing."""

SET_ID_BITS = 0o6000
CREATING_FLAGS = 0o20000100
"""O_CREAT, and the bit of O_TMPFILE without O_DIRECTORY."""

_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A machine's audit number (linux/audit.h), its column in `DENIED`, and the number of socket(2)."""

    audit: int
    column: int
    socket: int


ARCHITECTURES = {
    "x86_64": Architecture(audit=0xC000003E, column=0, socket=41),
    "aarch64": Architecture(audit=0xC00000B7, column=1, socket=198),
}


def is_supported() -> bool:
    """Return whether there is a filter for this machine."""
    return platform.machine() in ARCHITECTURES


def open_filter() -> int | None:
    """Return a new descriptor from which bubblewrap reads the filter; None on other architectures."""
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return None
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, filter_program(architecture))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def arguments(descriptor: int | None) -> tuple[str, ...]:
    """Return bubblewrap's arguments for an open filter."""
    return () if descriptor is None else ("--seccomp", str(descriptor))


@cache
def filter_program(architecture: Architecture) -> bytes:
    """Return the BPF program: `struct sock_filter` after `struct sock_filter`."""
    numbers = sorted(
        number for columns in DENIED.values() if (number := columns[architecture.column]) is not None
    )
    families = [
        _instruction(_JUMP_EQUAL, family, true=len(FAMILIES) - at) for at, family in enumerate(FAMILIES)
    ]
    denied = [
        _instruction(_JUMP_EQUAL, number, true=len(numbers) + 1 - at) for at, number in enumerate(numbers)
    ]
    return b"".join(
        [
            _instruction(_LOAD_WORD, _ARCHITECTURE),
            _instruction(_JUMP_EQUAL, architecture.audit, true=1),
            _instruction(_RETURN, _ERRNO | errno.ENOSYS),
            _instruction(_LOAD_WORD, _NUMBER),
            _instruction(_JUMP_GREATER, LAST_REVIEWED, false=1),
            _instruction(_RETURN, _ERRNO | errno.ENOSYS),
            *_mode_rules(architecture),
            *denied,
            _instruction(_JUMP_EQUAL, architecture.socket, true=2),
            _instruction(_RETURN, _ALLOW),
            _instruction(_RETURN, _ERRNO | errno.EPERM),
            _instruction(_LOAD_WORD, _FIRST_ARGUMENT),
            *families,
            _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
            _instruction(_RETURN, _ALLOW),
        ]
    )


def _mode_rules(architecture: Architecture) -> Iterator[bytes]:
    """Yield what decides about the calls with a file mode; all others are left to what follows."""
    yield _instruction(_JUMP_EQUAL, OPENAT2, false=1)
    yield _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    for call in MODE_CALLS.values():
        number = call.numbers[architecture.column]
        if number is None:
            continue
        flags = [] if call.flags is None else [*_bit_rule(call.flags, CREATING_FLAGS, false=2)]
        yield _instruction(_JUMP_EQUAL, number, false=len(flags) + 4)
        yield from flags
        yield from _bit_rule(call.mode, SET_ID_BITS, true=1)
        yield _instruction(_RETURN, _ALLOW)
        yield _instruction(_RETURN, _ERRNO | errno.EPERM)


def _bit_rule(argument: int, bits: int, *, true: int = 0, false: int = 0) -> Iterator[bytes]:
    """Yield a jump that depends on whether an argument has one of these bits."""
    yield _instruction(_LOAD_WORD, _FIRST_ARGUMENT + argument * _ARGUMENT_BYTES)
    yield _instruction(_JUMP_SET, bits, true=true, false=false)


def _instruction(code: int, operand: int, *, true: int = 0, false: int = 0) -> bytes:
    """Return one instruction; jumps count the instructions to skip."""
    return struct.pack("=HBBI", code, true, false, operand)
