"""Give a command a network namespace that pasta connects, then become the command. Imports one file of ours.

This program makes the namespace, and pasta attaches to it from outside: below pasta bubblewrap could make no
namespaces where pasta gives up root, or where the process may gain no privileges. A gateway without root
makes a user namespace too, in which it keeps its number. No route leads to link-local addresses, where
clouds answer with credentials, nor to the other addresses of this machine.

    attach_network.py PASTA OPTION… -- ADDRESSES FILTER COMMAND…

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
import sys
import time
from importlib.machinery import SourceFileLoader
from ipaddress import IPv4Network
from pathlib import Path
from types import ModuleType
from typing import NoReturn

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_PR_SET_PDEATHSIG = 1
_SIOCADDRT = 0x890B
_ROUTE_UP, _ROUTE_REJECT = 0x0001, 0x0200
_READY_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_MOUNT_POINT = "/mnt"
"""Any directory will do: what is mounted there is visible to pasta only."""

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
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by this interpreter
        signal.signal(ignored, signal.SIG_DFL)
    end = sys.argv.index("--")
    pasta, (addresses, packet_filter, *command) = sys.argv[1:end], sys.argv[end + 1 :]
    try:
        _attach(pasta)
        for network in (*BLOCKED, *filter(None, addresses.split(","))):
            _reject(IPv4Network(network))
        if packet_filter:
            _load(base64.b64decode(packet_filter))
        os.execv(command[0], command)  # noqa: S606 - the command is bubblewrap
    except OSError as error:
        sys.exit(f"the network namespace cannot be prepared: {error}")


def _attach(pasta: list[str]) -> None:
    """Enter a new network namespace that pasta connects; pasta ends with this process."""
    is_root, user, group = os.geteuid() == 0, os.geteuid(), os.getegid()
    is_made, say_made = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(say_made)
        _run_pasta(pasta, is_made, is_root=is_root)
    _check(_libc.unshare(_CLONE_NEWNET if is_root else _CLONE_NEWNET | _CLONE_NEWUSER))
    if not is_root:
        _keep_numbers(user, group)
    os.write(say_made, b"\0")
    os.close(say_made)
    os.close(is_made)
    _wait_until_connected(helper, pasta[0])


def _run_pasta(pasta: list[str], is_made: int, *, is_root: bool) -> NoReturn:
    """Become pasta for the parent's namespaces as soon as they are made; end if they are not."""
    parent = f"/proc/{os.getppid()}/ns"
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not os.read(is_made, 1):
        os._exit(1)
    try:
        own = ["--runas", "0", "--netns-only"] if is_root else ["--userns", f"{parent}/user"]
        network = _mount(f"{parent}/net") if is_root else f"{parent}/net"
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execv(pasta[0], [*pasta, *own, "--netns", network])  # noqa: S606 - the operator's program
    except OSError as error:
        os.write(2, f"{pasta[0]}: {error}\n".encode())
        os._exit(1)


def _mount(namespace: str) -> str:
    """Mount a namespace where only this process sees it: pasta of root gives up the right to open it."""
    name = Path(_MOUNT_POINT, "net")
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _check(_libc.mount(b"none", _MOUNT_POINT.encode(), b"tmpfs", 0, b"size=4k"))
    name.touch()
    _check(_libc.mount(namespace.encode(), os.fsencode(name), None, _MS_BIND, None))
    return str(name)


def _keep_numbers(user: int, group: int) -> None:
    """Map this user and group to themselves in the new user namespace."""
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _wait_until_connected(helper: int, program: str) -> None:
    """Wait for the default route, which pasta adds last; raises OSError if pasta ends before."""
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until:
        routes = Path("/proc/self/net/route").read_text(encoding="ascii")
        if any(line.split()[1:2] == ["00000000"] for line in routes.splitlines()):
            return
        ended, status = os.waitpid(helper, os.WNOHANG)
        if ended:
            raise OSError(f"{program} ended with {os.waitstatus_to_exitcode(status)}")
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
