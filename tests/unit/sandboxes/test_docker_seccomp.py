"""The profile of system calls for containers: as strict as the filter of host sandboxes."""

from __future__ import annotations

import json

import pytest

from sandbox.docker import seccomp_profile
from sandbox.host.isolation import seccomp
from scripts.reference import PROFILES, seccomp_file


@pytest.mark.parametrize("machine", seccomp_profile.ARCHITECTURES)
def test_a_container_may_call_nothing_that_the_host_denies(machine: str) -> None:
    """The default denies, no listed call is denied on the host, and sockets have the same families."""
    profile = json.loads(seccomp_profile.profile(machine))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {
        name
        for one in profile["syscalls"]
        if one["action"] == "SCMP_ACT_ALLOW" and not one.get("args")
        for name in one["names"]
    }
    assert not allowed & {*seccomp.DENIED, "unshare", "clone", "clone3", "socket", "chroot"}
    assert seccomp_profile.FAMILIES == seccomp.FAMILIES


@pytest.mark.parametrize("machine", seccomp_profile.ARCHITECTURES)
def test_the_shipped_files_are_these_profiles(machine: str) -> None:
    """Nodes of a cluster get the same filter: `python -m scripts.reference` writes the files."""
    assert (PROFILES / f"{machine}.json").read_text() == seccomp_file(machine)


def test_an_unknown_machine_has_no_profile() -> None:
    """The engine's own profile stays in place there."""
    assert seccomp_profile.profile("riscv64") == ""
