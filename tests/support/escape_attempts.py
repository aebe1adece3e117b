"""Hostile attempts of a sandboxed command, run by the sandbox's own python3: `python3 - FACTS < this file`.

FACTS is a JSON file that names what to look for. The program prints a JSON object with the outcome of each
attempt: `refused` with the kernel's error, `nothing` if it went through and found nothing of the machine, or
`obtained` with what it got. Each attempt is a process of its own. It imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
ATTEMPTS: dict[str, Callable[[Facts], object]] = {}
REFUSALS = {errno.EPERM, errno.EACCES, errno.ENOSYS}
"""What a call answers that the kernel or a filter refuses, whatever its arguments."""

CONNECT_SECONDS = 2.0
NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
MOUNT_REMOUNT_BIND, MOUNT_BIND = 0x20 | 0x1000, 0x1000
KEY_SESSION = -3
DEVICES = (
    *("mem", "kmem", "port", "kmsg", "sda", "vda", "xvda", "nvme0n1", "loop0", "loop-control", "fuse", "kvm"),
    *("net/tun", "vhost-vsock", "vhost-net", "mapper/control", "dri/card0", "vsock", "tty"),
)
KERNEL_SETTINGS = (
    *("sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname"),
    *("sys/vm/drop_caches", "sys/fs/binfmt_misc/register", "sys/vm/overcommit_memory", "acpi/wakeup"),
)
OWN_INTERFACES = {
    *("lo", "sit0", "tunl0", "gre0", "gretap0", "erspan0"),
    *("ip_vti0", "ip6_vti0", "ip6tnl0", "ip6gre0"),
}
"""What a kernel may put into every network namespace."""

libc = ctypes.CDLL(None, use_errno=True)


def attempt(name: str) -> Callable[[Callable[[Facts], object]], Callable[[Facts], object]]:
    """Enter an attempt in the table; it returns what it obtained, and a false value for nothing."""

    def enter(function: Callable[[Facts], object]) -> Callable[[Facts], object]:
        ATTEMPTS[name] = function
        return function

    return enter


def call(name: str, *arguments: object) -> str:
    """Call a function of the C library; raise if it is refused, and say so if the kernel took it."""
    return _judged(name, getattr(libc, name)(*arguments))


def system_call(facts: Facts, name: str, *arguments: object) -> str:
    """Make a system call by its number on this machine."""
    number = facts["calls"].get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"this architecture has no {name}")
    return _judged(name, libc.syscall(number, *arguments))


def _judged(name: str, answer: int) -> str:
    code = ctypes.get_errno()
    if answer == -1 and code in REFUSALS:
        raise OSError(code, name)
    return f"{name} was carried out" if answer != -1 else f"{name} was taken: {os.strerror(code)}"


def done(function: Callable[..., object], *arguments: object) -> str:
    """Call a function that raises if it is refused."""
    function(*arguments)
    return "done"


def text_of(path: str) -> str:
    """Return the beginning of a file."""
    with Path(path).open("rb") as file:
        return file.read(1 << 20).decode(errors="replace")


def first(attempt_at: Callable[[Any], object], values: Iterable[Any]) -> object:
    """Return the first thing that an attempt at one of several obtains; raise what the last one met."""
    last: OSError | None = None
    for value in values:
        try:
            if found := attempt_at(value):
                return found
        except OSError as error:
            last = error
    if last is not None:
        raise last
    return ""


def processes() -> Iterator[str]:
    """Yield the folders of the processes that can be seen."""
    yield from (str(place) for place in Path("/proc").iterdir() if place.name.isdigit())


def connects(address: tuple[str, int]) -> str:
    """Return the address if a server answers at it."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_SECONDS)
        client.connect(address)
    return f"{address} answers"


def connects_to_file(path: str) -> str:
    """Return the path of a unix socket if a server answers at it, however long the path is."""
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"/proc/self/fd/{folder}/{Path(path).name}")
    return f"{path} answers"


def opens_to_write(path: str) -> str:
    """Return the path if it can be opened for writing; nothing is written."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    return f"{path} can be written"


def is_the_other(facts: Facts) -> str:
    """Return what is known of the process of the machine, if its number leads to it from here."""
    return f"process {facts['pid']}" if facts["mark"] in text_of(f"/proc/{facts['pid']}/cmdline") else ""


@attempt("signal a process of the machine")
def _signal(facts: Facts) -> object:
    os.kill(facts["pid"], 0)
    return is_the_other(facts)


@attempt("trace a process of the machine")
def _trace(facts: Facts) -> object:
    if libc.ptrace(0x4206, facts["pid"], None, None) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")
    return is_the_other(facts)


@attempt("reach the data directory by the root of another process")
def _other_roots(facts: Facts) -> object:
    places = (f"{place}/{way}" for place in processes() for way in ("root", "cwd"))
    return first(lambda place: facts["mark"] in text_of(place + facts["secret"]), places)


@attempt("follow a link out of the workspace")
def _link(facts: Facts) -> object:
    links = {"absolute": facts["secret"], "relative": "../" * 20 + facts["secret"].lstrip("/")}
    for name, target in links.items():
        Path(f"escape-{name}").symlink_to(target)
    return first(lambda name: facts["mark"] in text_of(f"escape-{name}"), links)


@attempt("make a hard link to a file of the data directory")
def _hard_link(facts: Facts) -> object:
    Path("escape-hard").hardlink_to(facts["secret"])
    return "linked"


@attempt("open a file by its inode")
def _handle(facts: Facts) -> object:
    handle = ctypes.create_string_buffer(struct.pack("=Iiq", 8, 1, 2))
    return system_call(facts, "open_by_handle_at", os.open(".", os.O_RDONLY), handle, os.O_RDONLY)


@attempt("connect to a metadata service")
def _metadata(_facts: Facts) -> object:
    targets = (("169.254.169.254", 80), ("fd00:ec2::254", 80), ("100.100.100.200", 80))
    return first(connects, targets)


@attempt("send a packet to a public address")
def _packet(_facts: Facts) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        return client.sendto(b"\0", ("192.0.2.1", 53))


@attempt("connect to an abstract socket of the machine")
def _abstract(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + facts["abstract"])
    return "it answers"


@attempt("make a namespace of users")
def _user_namespace(_facts: Facts) -> object:
    if libc.unshare(NEW_USERS) == -1:
        raise OSError(ctypes.get_errno(), "unshare")
    return "made"


@attempt("enter a namespace of process 1")
def _enter(_facts: Facts) -> object:
    kinds = ("mnt", "net", "pid", "user")
    return first(lambda kind: call("setns", os.open(f"/proc/1/ns/{kind}", 0), 0), kinds)


@attempt("make a device node")
def _device_node(_facts: Facts) -> object:
    kinds = ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1)))
    return first(lambda one: done(os.mknod, "escape-device", one[0] | 0o600, one[1]), kinds)


@attempt("read the kernel's memory")
def _kernel_memory(_facts: Facts) -> object:
    paths = ("/proc/kcore", "/dev/mem", "/dev/kmem")
    return first(lambda path: os.pread(os.open(path, os.O_RDONLY), 16, 4096), paths)


def files_below(*folders: str) -> Iterator[str]:
    """Yield some of the files below each folder."""
    for folder in folders:
        paths = (f"{place}/{name}" for place, _, names in os.walk(folder) for name in names)
        yield from islice(paths, 300)


@attempt("write below /sys")
def _sys(_facts: Facts) -> object:
    paths = files_below("/sys/kernel", "/sys/module", "/sys/power", "/sys/firmware", "/sys/class")
    return first(opens_to_write, paths)


@attempt("make a control group")
def _new_control_group(_facts: Facts) -> object:
    folders = [place for place, _, _ in islice(os.walk("/sys/fs/cgroup"), 50)]
    return first(lambda place: done(os.mkdir, f"{place}/escape"), folders)


@attempt("set the clock")
def _clock(_facts: Facts) -> object:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "set"


@attempt("set the host name")
def _host_name(_facts: Facts) -> object:
    socket.sethostname("escape")
    return "set"


@attempt("become another user")
def _user(_facts: Facts) -> object:
    os.setuid(os.getuid() + 1)
    return "changed"


@attempt("become a member of another group")
def _group(_facts: Facts) -> object:
    os.setgroups([0, 4, 999])
    return "changed"


@attempt("have a capability")
def _capability(_facts: Facts) -> object:
    lines = text_of("/proc/self/status").splitlines()
    return [line for line in lines if line.startswith("Cap") and int(line.split()[1], 16)]


@attempt("open a raw socket")
def _raw_socket(_facts: Facts) -> object:
    kinds = ((socket.AF_INET, 1), (socket.AF_INET6, 58))
    return first(lambda one: str(socket.socket(one[0], socket.SOCK_RAW, one[1])), kinds)


@attempt("change a network interface")
def _interface(_facts: Facts) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sH22x", b"lo", 0))
    return "changed"


@attempt("be the last to be ended for memory")
def _last_to_die(_facts: Facts) -> object:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    return "set"


SHORT: dict[str, Callable[[Facts], object]] = {
    "read the environment of process 1": lambda facts: facts["mark"] in text_of("/proc/1/environ"),
    "read the environment of every process": lambda facts: first(
        lambda place: facts["mark"] in text_of(f"{place}/environ"), processes()
    ),
    "find a process of the machine": lambda facts: first(
        lambda place: facts["mark"] in text_of(f"{place}/cmdline"), processes()
    ),
    "read a file of the data directory": lambda facts: facts["mark"] in text_of(facts["secret"]),
    "list the data directory": lambda facts: [*Path(facts["secret"]).parent.iterdir()],
    "connect to the gateway's port": lambda facts: first(
        lambda one: connects((one, facts["ports"][0])), facts["addresses"]
    ),
    "connect to the port of NATS": lambda facts: first(
        lambda one: connects((one, facts["ports"][1])), facts["addresses"]
    ),
    "see a network interface of the machine": lambda _facts: [
        name for _, name in socket.if_nameindex() if name not in OWN_INTERFACES
    ],
    "connect to the socket of a container engine": lambda facts: first(connects_to_file, facts["engines"]),
    "connect to the callback socket of another sandbox": lambda facts: connects_to_file(facts["callback"]),
    "mount a file system": lambda _facts: call("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None),
    "mount a directory somewhere else": lambda _facts: call(
        "mount", b"/proc", b"/tmp", None, MOUNT_BIND, None
    ),
    "make a read-only mount writable": lambda _facts: call(
        "mount", None, b"/", None, MOUNT_REMOUNT_BIND, None
    ),
    "unmount what hides the machine": lambda _facts: call("umount2", b"/proc", 2),
    "mount with the newer system calls": lambda facts: first(
        lambda name: system_call(facts, name, 0, 0), ("fsopen", "open_tree")
    ),
    "change the root directory": lambda _facts: call("chroot", b"/proc"),
    "exchange the root file system": lambda facts: system_call(facts, "pivot_root", b".", b"."),
    "make a namespace of mounts": lambda _facts: call("unshare", NEW_MOUNTS),
    "open a device of the machine": lambda _facts: first(
        lambda name: os.open(f"/dev/{name}", os.O_RDONLY) and name, DEVICES
    ),
    "read the kernel's log": lambda _facts: call("klogctl", 3, ctypes.create_string_buffer(64), 64),
    "change a setting of the kernel": lambda _facts: first(
        lambda name: opens_to_write(f"/proc/{name}"), KERNEL_SETTINGS
    ),
    "change a control group": lambda _facts: first(opens_to_write, files_below("/sys/fs/cgroup")),
    "load a kernel module": lambda facts: first(
        lambda name: system_call(facts, name, -1, b"", 0), ("finit_module", "init_module")
    ),
    "load another kernel": lambda facts: system_call(facts, "kexec_load", 0, 0, 0, 0),
    "restart the machine": lambda facts: system_call(facts, "reboot", 1, 2, 3, 0),
    "swap to a file": lambda _facts: call("swapon", b"/proc/self/no-such-file", 0),
    "gain rights by a setuid program": lambda _facts: libc.prctl(39, 0, 0, 0, 0) != 1,
    "open a packet socket": lambda _facts: str(socket.socket(17, socket.SOCK_RAW)),
    "open a socket to the hypervisor": lambda _facts: str(socket.socket(40, socket.SOCK_STREAM)),
    "use the kernel's key rings": lambda facts: first(
        lambda words: system_call(facts, *words),
        (("keyctl", 0, KEY_SESSION, 1), ("add_key", b"user", b"a", b"b", 1, KEY_SESSION)),
    ),
    "set up io_uring": lambda facts: system_call(facts, "io_uring_setup", 0, 0),
    "load a program into the kernel": lambda facts: system_call(facts, "bpf", 5, 0, 0),
    "profile the machine": lambda facts: system_call(facts, "perf_event_open", 0, 0, 0, 0, 0),
    "handle the page faults of others": lambda facts: system_call(facts, "userfaultfd", 0),
    "use the machine's ports of input and output": lambda facts: system_call(facts, "iopl", 3),
}
"""The attempts that are one call."""

ATTEMPTS.update(SHORT)


def outcome_of(name: str, facts: Facts) -> tuple[str, str]:
    """Make an attempt in a process of its own, and return its outcome."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = ATTEMPTS[name](facts)
            reported = ("obtained", str(found)[:200]) if found else ("nothing", "")
        except OSError as error:
            reported = ("refused", str(error)[:200])
        except BaseException as error:  # noqa: BLE001 - the test shows whatever it is
            reported = ("broken", repr(error)[:200])
        os.write(writing, json.dumps(reported).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    outcome, words = json.loads(answer or b'["killed", ""]')
    return outcome, words


def main() -> None:
    """Make each attempt, or those that FACTS names, and print the outcomes."""
    facts: Facts = json.loads(text_of(sys.argv[1]))
    names = facts.get("only") or ATTEMPTS
    sys.stdout.write(json.dumps({name: outcome_of(name, facts) for name in names}))


if __name__ == "__main__":
    main()
