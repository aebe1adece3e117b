"""How the host provider reads a machine's control groups, on trees made for the test."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.host.isolation.cgroups import CgroupLayout, SandboxCgroups, probe, remove_sandbox, sweep
from sandbox.model import SandboxSpec

SPEC = SandboxSpec(label="l", namespace="n", memory_mb=64, pids=32, cpus=0.5)


def _second(mounts: Path, path: str, *, controllers: str, handed: str) -> Path:
    """Make a version 2 mount with our group in it; the kernel would make the files."""
    group = mounts / path.lstrip("/")
    for directory in (group, group / "tag"):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in (("cgroup.controllers", controllers), ("cgroup.subtree_control", handed)):
            (directory / name).write_text(text)
        (directory / "cgroup.procs").write_text("")
    (mounts / "cgroup.controllers").touch()
    return group


def test_version_two_is_one_directory_for_everything(tmp_path: Path) -> None:
    """On a unified machine all limits and runs are below the gateway's own group."""
    group = _second(tmp_path, "/user.slice/app", controllers="cpu memory pids", handed="cpu memory pids")
    layout = probe("tag", tmp_path, "0::/user.slice/app\n")
    assert layout == CgroupLayout(
        version=2, bases=dict.fromkeys(("memory", "pids", "cpu"), group / "tag"), runs=group / "tag"
    )
    assert {file: value for _, file, value in layout.files(SPEC)} == {
        "pids.max": "32",
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "cpu.max": "50000 100000",
    }


def test_version_two_without_delegation_still_kills_by_group(tmp_path: Path) -> None:
    """A group that may not hand controllers down bounds nothing but gives runs their groups."""
    group = _second(tmp_path, "/", controllers="", handed="")
    layout = probe("tag", tmp_path, "0::/\n")
    assert layout.bases == {}
    assert layout.runs == group / "tag"


def _first(mounts: Path, *, unified: bool, kill: bool = True) -> str:
    """Create a version 1 mount and return its line in /proc/self/cgroup."""
    for controller in ("memory", "pids", "cpu", *(("unified",) if unified else ())):
        directory = mounts / controller / "own" / "tag"
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").touch()
    if unified and kill:
        (mounts / "unified/own/tag/cgroup.kill").touch()
    return "9:memory:/own\n8:pids:/own\n4:cpu,cpuacct:/own\n0::/own\n"


@pytest.mark.parametrize(
    ("unified", "kill", "runs"), [(True, True, "unified"), (True, False, "pids"), (False, False, "pids")]
)
def test_version_one_kills_by_the_unified_mount_if_it_can(
    tmp_path: Path, *, unified: bool, kill: bool, runs: str
) -> None:
    """On a hybrid machine runs get groups where cgroup.kill exists, else beside the process limit."""
    layout = probe("tag", tmp_path, _first(tmp_path, unified=unified, kill=kill))
    assert layout.version == 1
    assert layout.runs == tmp_path / runs / "own/tag"
    joins = SandboxCgroups(layout=layout, name="box", account="one").cgroup_for("run-1").joins
    assert len(joins) == (4 if runs == "unified" else 3)
    assert joins[-1] == tmp_path / runs / "own/tag/account-one/box/run-1"


def test_a_container_sees_its_own_group_as_the_mount(tmp_path: Path) -> None:
    """A path of the outer machine that is not mounted means the root of the mount."""
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller / "tag").mkdir(parents=True)
        (tmp_path / controller / "tag/cgroup.procs").touch()
    layout = probe("tag", tmp_path, "9:memory:/docker/x\n8:pids:/docker/x\n4:cpu:/docker/x\n")
    assert layout.bases["memory"] == tmp_path / "memory/tag"


def test_no_control_groups_is_an_empty_layout(tmp_path: Path) -> None:
    """Where nothing is mounted or writable there is nothing to join."""
    layout = probe("tag", tmp_path / "absent", "0::/\n")
    assert layout == CgroupLayout()
    assert SandboxCgroups(layout=layout, name="box").cgroup_for("run-1").joins == ()


def test_sandboxes_are_grouped_by_account(tmp_path: Path) -> None:
    """An account's sandboxes are below its group, whatever its id contains; limits are the sandbox's."""
    group = _second(tmp_path, "/app", controllers="cpu memory pids", handed="cpu memory pids")
    layout = probe("tag", tmp_path, "0::/app\n")
    for account, name in (("one", "a"), ("one", "b"), ("../up", "c")):
        SandboxCgroups(layout=layout, name=name, account=account).apply_limits(SPEC)
    found = {path.parent.relative_to(group / "tag").as_posix() for path in group.rglob("cpu.max")}
    assert found == {"account-one/a", "account-one/b", "account-..%2Fup/c"}


def test_an_accounts_group_is_removed_with_its_last_sandbox(tmp_path: Path) -> None:
    """It stays while another sandbox needs it, and the next start removes those that were left."""
    layout = CgroupLayout(version=2, runs=tmp_path)
    for name in ("a", "b"):
        SandboxCgroups(layout=layout, name=name, account="one").apply_limits(SPEC)
    (tmp_path / "account-left").mkdir()
    assert remove_sandbox(layout, "a")
    assert (tmp_path / "account-one/b").is_dir()
    assert remove_sandbox(layout, "b")
    assert not (tmp_path / "account-one").exists()
    sweep(layout, frozenset())
    assert not list(tmp_path.iterdir())


def test_a_sandbox_is_created_while_the_last_one_of_its_account_is_removed(tmp_path: Path) -> None:
    """Four threads create and remove sandboxes of one account; each finds its own as it left it."""
    layout = CgroupLayout(version=2, runs=tmp_path)

    def create_and_remove(name: str) -> None:
        for _ in range(300):
            SandboxCgroups(layout=layout, name=name, account="one").apply_limits(SPEC)
            assert (tmp_path / "account-one" / name).is_dir()
            assert remove_sandbox(layout, name)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads change between any two calls
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(create_and_remove, "abcd")) == [None] * 4
    finally:
        sys.setswitchinterval(interval)
