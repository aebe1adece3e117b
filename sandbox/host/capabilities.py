"""Report what this host offers for sandboxes, for `doctor` and tool descriptions."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox.config import SCREENS
from sandbox.host.isolation import bubblewrap, cgroups, network, runtimes, seccomp
from sandbox.host.settings import HostSettings
from sandbox.port import Capability


def capabilities(settings: HostSettings) -> Sequence[Capability]:
    """Return the isolation, limits and runtimes that are available here."""
    return [*_isolation(settings), *_limits(settings), *_runtimes(settings)]


def _isolation(settings: HostSettings) -> Iterator[Capability]:
    binary = bubblewrap.find(settings.bubblewrap)
    problem = bubblewrap.probe(binary)
    detail = f"{binary}: own pid, mount, user, network, ipc and uts namespaces for every run"
    yield Capability(
        name="isolation",
        present=problem is None,
        detail=detail if problem is None else f"{problem}; {bubblewrap.REMEDY}",
    )
    if binary is not None:
        yield _version(binary)
    yield Capability(
        name="seccomp",
        present=seccomp.is_supported(),
        detail="system calls are filtered"
        if seccomp.is_supported()
        else f"system calls are not filtered: there is no filter for {platform.machine()}",
    )
    networking = network.find_for(settings, bubblewrap.probe_command(binary or Path("bwrap")))
    reach = "public addresses only" if settings.network_filter else "without a filter"
    network_detail = (
        f"allow-all has a network namespace of its own, {reach} ({networking.detail})"
        if networking.isolated
        else f"allow-all is refused: {networking.detail}; {network.REMEDY}"
    )
    yield Capability(name="network", present=networking.isolated, detail=network_detail)
    python = next((one for one in runtimes.find(settings.runtime_directories) if one.name == "python3"), None)
    yield Capability(
        name="restricted_network",
        present=problem is None and python is not None,
        detail="restricted goes through the gateway's proxy"
        if python is not None
        else "restricted is refused: the sandbox needs python3 to reach the gateway's proxy",
    )


def _version(binary: Path) -> Capability:
    found = bubblewrap.version(binary)
    is_setuid = binary.exists() and bool(binary.stat().st_mode & stat.S_ISUID)
    concern = bubblewrap.version_concern(found, is_setuid=is_setuid)
    text = ".".join(map(str, found))
    detail = f"{binary}: version {text}" if concern is None else f"{binary}: {concern}"
    return Capability(name="bubblewrap", present=concern is None, detail=detail)


def _limits(settings: HostSettings) -> Iterator[Capability]:
    layout = cgroups.probe(f"dovecote-doctor-{os.getpid()}") if settings.cgroups else cgroups.CgroupLayout()
    cgroups.remove_all(layout)
    version = f"control groups, version {layout.version}"
    stand_ins = {
        "memory": "RLIMIT_DATA for each process: not for the sandbox as a whole",
        "pids": "RLIMIT_NPROC" if os.getuid() else "not limited: root is exempt from RLIMIT_NPROC",
        "cpu": "not limited",
    }
    for controller, stand_in in stand_ins.items():
        present = controller in layout
        yield Capability(name=f"limit.{controller}", present=present, detail=version if present else stand_in)


def _runtimes(settings: HostSettings) -> Iterator[Capability]:
    found = {runtime.name: runtime for runtime in runtimes.find(settings.runtime_directories)}
    for name in runtimes.NAMES:
        runtime = found.get(name)
        detail = str(runtime.program) if runtime else f"no {name} was found on this host"
        yield Capability(name=f"runtime.{name}", present=runtime is not None, detail=detail)
    missing = runtimes.missing_screens()
    for name in (one for one in SCREENS if one not in missing):
        yield Capability(name=f"runtime.{name}", present=True, detail="its programs are in /usr")
