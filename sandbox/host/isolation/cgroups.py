"""Limit memory, processes and processor time of a sandbox by control groups of either version.

A sandbox has one directory with its limits in every hierarchy in use. Each run and job has a directory in one
of them, so that all its processes can be killed at once:

    version 2   <ours>/<account>/<sandbox>  memory.max pids.max cpu.max      …/<sandbox>/run-…  cgroup.kill
    version 1   memory/<ours>/<account>/<sandbox>  pids/…  cpu/…    unified/…/<sandbox>/run-…  (or pids/…)

`<ours>` is below the group of the gateway, so limits of the gateway hold for its sandboxes too. The kernel
divides the processors among groups of equal weight at each level: an account with many sandboxes gets no more
than one with a single sandbox. Kernel documents: admin-guide/cgroup-v2 and admin-guide/cgroup-v1.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import structlog

from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.isolation.process_tree import descendants
from sandbox.model import SandboxSpec

_log = structlog.get_logger(__name__)

CGROUP_MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD = 100_000
_START_SECONDS = 60.0
_CREATE_ATTEMPTS = 10
"""Attempts to create a group while another gateway of this host removes that of the account."""

_account_groups = threading.Lock()
"""Held while the group of an account is created with its first sandbox, or removed with its last one."""

_serial = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLayout:
    """The control groups of this host: our directory for each controller, and the one for runs."""

    version: int = 0
    bases: Mapping[str, Path] = field(default_factory=dict)
    runs: Path | None = None

    def __contains__(self, controller: str) -> bool:
        return controller in self.bases

    @property
    def roots(self) -> frozenset[Path]:
        """Return all directories of ours, without duplicates."""
        return frozenset((*self.bases.values(), *((self.runs,) if self.runs else ())))

    def files(self, spec: SandboxSpec) -> Iterator[tuple[str, str, str]]:
        """Yield (controller, file, value) for the limits of a spec."""
        memory = str(spec.memory_mb * 1024 * 1024)
        quota = str(max(1000, int(spec.cpus * CPU_PERIOD)))
        yield "pids", "pids.max", str(spec.pids)
        if self.version == 1:
            yield "memory", "memory.limit_in_bytes", memory
            yield "memory", "memory.memsw.limit_in_bytes", memory
            yield "cpu", "cpu.cfs_period_us", str(CPU_PERIOD)
            yield "cpu", "cpu.cfs_quota_us", quota
        else:
            yield "memory", "memory.max", memory
            yield "memory", "memory.swap.max", "0"
            yield "cpu", "cpu.max", f"{quota} {CPU_PERIOD}"


def probe(tag: str, mounts: Path = CGROUP_MOUNT, own: str | None = None) -> CgroupLayout:
    """Create our directories if that is allowed and return the layout; an empty CgroupLayout means none."""
    text = Path("/proc/self/cgroup").read_text(encoding="utf-8") if own is None else own
    paths = {name: path for line in text.splitlines() for name, path in _entries(line)}
    if (mounts / "cgroup.controllers").exists():
        return _probe_v2(_group_directory(mounts, paths.get("", "/")), tag)
    bases: dict[str, Path] = {}
    for controller in CONTROLLERS:
        if controller in paths and (
            base := _create(_group_directory(mounts / controller, paths[controller]) / tag)
        ):
            bases[controller] = base
    unified = _create(_group_directory(mounts / "unified", paths.get("", "/")) / tag)
    if unified is not None and not (unified / "cgroup.kill").exists():
        unified = None
    runs = unified or bases.get("pids") or bases.get("memory")
    return CgroupLayout(version=1, bases=bases, runs=runs) if runs else CgroupLayout()


def _entries(line: str) -> Iterator[tuple[str, str]]:
    _, controllers, path = line.split(":", 2)
    for controller in controllers.split(","):
        yield controller, path


def _group_directory(mount: Path, path: str) -> Path:
    """Return where a group is mounted; a container sees its own group as the root of the mount."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount


def _create(path: Path) -> Path | None:
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return None
    return path if os.access(path / "cgroup.procs", os.W_OK) else None


def _probe_v2(own: Path, tag: str) -> CgroupLayout:
    """Create version 2 groups; a group with processes cannot delegate controllers, so we may move."""
    base = _create(own / tag)
    if base is None:
        return CgroupLayout()
    if not _enable_controllers(own) and _move_to_child(own):
        _enable_controllers(own)
    _enable_controllers(base)
    present = _words(base / "cgroup.subtree_control")
    bases = {controller: base for controller in CONTROLLERS if controller in present}
    return CgroupLayout(version=2, bases=bases, runs=base)


def _enable_controllers(group: Path) -> bool:
    wanted = [name for name in CONTROLLERS if name in _words(group / "cgroup.controllers")]
    for name in set(wanted) - _words(group / "cgroup.subtree_control"):
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")
    return set(wanted) <= _words(group / "cgroup.subtree_control")


def _move_to_child(own: Path) -> bool:
    """Move the gateway and its children to a group of their own, if no other process is in this one."""
    try:
        residents = {int(word) for word in _words(own / "cgroup.procs")}
        if not residents <= {os.getpid(), *descendants(os.getpid())}:
            return False
        aside = own / "gateway"
        aside.mkdir(exist_ok=True)
        for pid in residents:
            (aside / "cgroup.procs").write_text(str(pid))
    except (OSError, ValueError):
        return False
    return True


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="ascii").split())
    except OSError:
        return set()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCgroups:
    """The cgroups of one sandbox, with its limits and the groups of its runs, below those of its account."""

    layout: CgroupLayout
    name: str
    account: str = ""

    @property
    def _path(self) -> Path:
        return Path(f"account-{quote(self.account, safe='')}", self.name)

    def apply_limits(self, spec: SandboxSpec) -> None:
        """Create the sandbox's groups and write its limits; limits may change while something runs."""
        for root in self.layout.roots:
            self._create(root / self._path)
        for controller, file, value in self.layout.files(spec):
            if controller in self.layout:
                self._write(self.layout.bases[controller] / self._path / file, value)

    def would_lower(self, spec: SandboxSpec) -> bool:
        """Return whether a limit of the spec is below the one that the sandbox's groups have now."""
        return any(
            _is_lower(value, self.layout.bases[controller] / self._path / file)
            for controller, file, value in self.layout.files(spec)
            if controller in self.layout
        )

    def _create(self, directory: Path) -> None:
        """Create the group below its account's; that one is removed with the last sandbox, maybe just now."""
        for remaining in reversed(range(_CREATE_ATTEMPTS)):
            try:
                with _account_groups:
                    directory.parent.mkdir(parents=True, exist_ok=True)
                    if self.layout.version != 1:
                        _enable_controllers(directory.parent)
                    directory.mkdir(exist_ok=True)
            except (FileNotFoundError, FileExistsError):  # the latter: it was removed before it was looked at
                if not remaining:
                    raise
            else:
                return

    def cgroup_for(self, name: str) -> Cgroup:
        """Return the group of one run or job without creating it."""
        if self.layout.runs is None:
            return Cgroup()
        own = self.layout.runs / self._path / name
        others = {base / self._path for base in self.layout.bases.values() if base != self.layout.runs}
        return Cgroup(joins=(*sorted(others), own), own=own)

    def create_run_cgroup(self, spec: SandboxSpec) -> Cgroup:
        """Return a new group for a run, named for this process, so that a later one recognises leftovers."""
        group = self.cgroup_for(f"run-{os.getpid()}-{next(_serial)}")
        if group.own is not None:
            try:
                group.own.mkdir()
            except FileNotFoundError:
                self.apply_limits(spec)
                group.own.mkdir()
        return group

    def _write(self, path: Path, value: str) -> None:
        try:
            _write_limit(path, value)
        except FileNotFoundError:  # no swap accounting here
            return
        except OSError as error:
            _log.warning("sandbox.limit_failed", file=str(path), value=value, because=str(error))


def _is_lower(value: str, file: Path) -> bool:
    """Return whether a limit is below that in a file, whose first word is a number or `max`."""
    try:
        present = file.read_text(encoding="ascii").split()[0]
    except (OSError, IndexError):
        return False
    return present == "max" or int(value.split(maxsplit=1)[0]) < int(present)


def _write_limit(path: Path, value: str) -> None:
    """Write a limit; version 1 rejects memory above memory+swap, so that limit is raised first."""
    try:
        path.write_text(value, encoding="ascii")
    except OSError:
        if path.name != "memory.limit_in_bytes":
            raise
        with contextlib.suppress(OSError):
            path.with_name("memory.memsw.limit_in_bytes").write_text("-1")
        path.write_text(value, encoding="ascii")


def remove_sandbox(layout: CgroupLayout, name: str) -> bool:
    """Kill a sandbox's remaining processes and remove its groups; return whether they are gone."""
    found = [account / name for account in _accounts(layout) if (account / name).exists()]
    for sandbox in found:
        for child in _directories(sandbox):
            _kill_and_remove(child)
        _remove_if_empty(sandbox)
        _remove_if_empty(sandbox.parent)
    return not any(sandbox.exists() for sandbox in found)


def sweep(layout: CgroupLayout, keep: frozenset[str]) -> None:
    """Remove what dead gateways left: groups of runs, and groups of sandboxes that are not in `keep`."""
    for account in _accounts(layout):
        for sandbox in _directories(account):
            for child in _directories(sandbox):
                if _is_orphaned(child):
                    _kill_and_remove(child)
            if sandbox.name not in keep:
                _remove_if_empty(sandbox)
        _remove_if_empty(account)


def remove_all(layout: CgroupLayout) -> bool:
    """Remove our directories where nothing runs; return whether all are gone."""
    sweep(layout, frozenset())
    for root in layout.roots:
        with contextlib.suppress(OSError):
            root.rmdir()
    return not any(root.exists() for root in layout.roots)


def _accounts(layout: CgroupLayout) -> list[Path]:
    """Return the groups of all accounts in all hierarchies."""
    return [account for root in layout.roots for account in _directories(root)]


def _kill_and_remove(run: Path) -> None:
    group = Cgroup(own=run)
    group.kill()
    group.remove()


def _remove_if_empty(directory: Path) -> None:
    with _account_groups, contextlib.suppress(OSError):
        directory.rmdir()


def _is_orphaned(group: Path) -> bool:
    """Return whether a run's gateway is dead, or a job's group has been empty longer than a start takes."""
    kind, _, rest = group.name.partition("-")
    owner = rest.partition("-")[0]
    if kind == "run":
        return not Path(f"/proc/{owner}").exists()
    try:
        return not Cgroup(own=group).processes() and time.time() - group.stat().st_mtime > _START_SECONDS
    except OSError:
        return False


def _directories(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []
