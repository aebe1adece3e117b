"""requirements.lock has the versions of constraints.txt, each with the hashes of its files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"[^A-Za-z0-9._-]")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def test_versions_are_those_that_tests_use() -> None:
    """What an image installs is what the gate tested."""
    tested = dict(PIN.findall((ROOT / "constraints.txt").read_text()))
    locked = dict(PIN.findall((ROOT / "requirements.lock").read_text()))
    assert len(locked) > 100
    assert {name: version for name, version in locked.items() if tested.get(name, version) != version} == {}


def test_every_extra_of_a_gateway_is_locked() -> None:
    """The image has all extras but the contract suites."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        _plain(one) for extra, requirements in declared.items() if extra != "testing" for one in requirements
    }
    assert wanted <= {_plain(name) for name, _ in PIN.findall((ROOT / "requirements.lock").read_text())}


def _plain(requirement: str) -> str:
    """Return the name of a requirement as registries write it."""
    return NAME.split(requirement, maxsplit=1)[0].replace("_", "-").lower()


def test_every_file_has_a_hash() -> None:
    """Each pin is followed by at least one SHA-256."""
    pins = re.split(r"^(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    without = [pin.splitlines()[0] for pin in pins if pin and "--hash=sha256:" not in pin]
    assert without == []
