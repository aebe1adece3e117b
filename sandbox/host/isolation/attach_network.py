"""Give a command a network namespace that pasta connects, then become the command. Imports one file of ours.

A gateway that runs as root cannot start bubblewrap below pasta: pasta gives up root, or its user namespace
keeps bubblewrap from making one. So this program makes the namespace, and pasta attaches to it from outside.
Otherwise pasta runs this program inside its namespace. In both cases no route leads to link-local addresses,
where clouds answer with credentials, nor to the other addresses of this machine.

    attach_network.py outside PASTA OPTION… -- ADDRESSES FILTER COMMAND…   as root: make it, attach pasta
    attach_network.py inside ADDRESSES FILTER COMMAND…                     below pasta: only close it

ADDRESSES are the further addresses to block, with commas. FILTER is a packet filter as netlink messages in
base64, or nothing. Its rules hold for every program in the namespace, and none of them can change it.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from ipaddress import IPv4Network
from pathlib import Path
from types import ModuleType

_CLONE_NEWNS, _CLONE_NEWNET = 0x0002_0000, 0x4000_0000
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_PR_SET_PDEATHSIG = 1
_SIOCADDRT = 0x890B
_ROUTE_UP, _ROUTE_REJECT = 0x0001, 0x0200
_READY_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_MOUNT_POINT = "/mnt"
"""Any directory will do: what is mounted there is visible to this process only, and removed again."""

BLOCKED = ("169.254.0.0/16", "100.100.100.200/32", "192.0.0.192/32")
"""Addresses at which clouds serve credentials; the whole of link-local is among them."""

_LOADER = Path(__file__).parents[2] / "network" / "load_filter.py"

_libc = ctypes.CDLL(None, use_errno=True)


class _RouteEntry(ctypes.Structure):
    """The kernel's `struct rtentry`."""

    _fields_ = (
        ("pad1", ctypes.c_ulong),
        ("destination", ctypes.c_byte * 16),
        ("gateway", ctypes.c_byte * 16),
        ("mask", ctypes.c_byte * 16),
        ("flags", ctypes.c_ushort),
        ("pad2", ctypes.c_short),
        ("pad3", ctypes.c_ulong),
        ("pad4", ctypes.c_void_p),
        ("metric", ctypes.c_short),
        ("device", ctypes.c_char_p),
        ("mtu", ctypes.c_ulong),
        ("window", ctypes.c_ulong),
        ("round_trip", ctypes.c_ushort),
    )


def main() -> None:
    """Prepare the network as `sys.argv` says and become the command; exit with a reason if that fails."""
    mode, *rest = sys.argv[1:]
    try:
        if mode == "outside":
            end = rest.index("--")
            _attach(rest[:end])
            rest = rest[end + 1 :]
        else:
            _show_own_processes()
        addresses, packet_filter, command = rest[0], rest[1], rest[2:]
        for network in (*BLOCKED, *filter(None, addresses.split(","))):
            _reject(IPv4Network(network))
        if packet_filter:
            _load(base64.b64decode(packet_filter))
        os.execv(command[0], command)  # noqa: S606 - the command is bubblewrap
    except OSError as error:
        sys.exit(f"the network namespace cannot be prepared: {error}")


def _show_own_processes() -> None:
    """Mount a /proc of pasta's pid namespace, where bubblewrap looks for the process that it made."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _check(_libc.mount(b"proc", b"/proc", b"proc", 0, None))


def _attach(pasta: list[str]) -> None:
    """Enter a new network namespace that pasta connects; pasta ends with this process."""
    host = os.open("/proc/self/ns/net", os.O_RDONLY)
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _check(_libc.unshare(_CLONE_NEWNET))
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    _check(_libc.mount(b"none", _MOUNT_POINT.encode(), b"tmpfs", 0, b"size=4k"))
    name = Path(_MOUNT_POINT, "net")
    name.touch()
    _check(_libc.mount(b"/proc/self/ns/net", os.fsencode(name), None, _MS_BIND, None))
    _check(_libc.setns(host, _CLONE_NEWNET))
    process = subprocess.Popen(  # noqa: S603 - the operator's program
        [*pasta, "--netns", str(name)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    _check(_libc.setns(own, _CLONE_NEWNET))
    _wait_until_connected(process, pasta[0])
    for mounted in (os.fsencode(name), _MOUNT_POINT.encode()):
        _check(_libc.umount2(mounted, 2))
    os.close(host)
    os.close(own)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_connected(process: subprocess.Popen[bytes], program: str) -> None:
    """Wait for the default route, which pasta adds last; raises OSError if pasta ends before."""
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until:
        routes = Path("/proc/self/net/route").read_text(encoding="ascii")
        if any(line.split()[1:2] == ["00000000"] for line in routes.splitlines()):
            return
        if process.poll() is not None:
            raise OSError(f"{program} ended with {process.returncode}")
        time.sleep(_PAUSE_SECONDS)
    raise OSError("no default route appeared: this machine may have none")


def _reject(network: IPv4Network) -> None:
    """Make a network unreachable; raises OSError."""
    entry = _RouteEntry(flags=_ROUTE_UP | _ROUTE_REJECT)
    for field, address in (("destination", network.network_address), ("mask", network.netmask)):
        packed = socket.AF_INET.to_bytes(2, sys.byteorder) + bytes(2) + address.packed + bytes(8)
        ctypes.memmove(getattr(entry, field), packed, 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, _SIOCADDRT, bytes(entry))
        except FileExistsError:
            return


def _load(messages: bytes) -> None:
    """Load a packet filter; raises OSError where the kernel has none."""
    loader = SourceFileLoader("load_filter", str(_LOADER))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    module.load(messages)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
