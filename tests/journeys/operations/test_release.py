"""A release from the last commit: the same bytes twice, checksums, a signature, and a wheel that runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway_process import reserve_port
from scripts.image_digests import named_images
from scripts.release import NAMESPACE, ROOT, ReleaseFailed, bill_of_materials, locked, release
from session import trusting_all

BOUND = 90.0
"""Seconds that a wheel's first start may take on a slow machine."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a signed release; `release` itself compares two builds."""
    folder = tmp_path_factory.mktemp("release")
    for program in ("git", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the repository is no clone")
    key = folder / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "release@example.com", "-f", str(key))
    images = folder / "images.txt"
    images.write_text("".join(f"{image}@sha256:{'a' * 64}\n" for image in named_images()))
    release(folder / "dist", key=key, images=images)
    return folder


def run(*command: str, cwd: Path | None = None, stdin: bytes = b"") -> str:
    """Run a command and return its output."""
    clean = {
        name: value for name, value in trusting_all().items() if not name.startswith(("DOVECOTE_", "PYTHON"))
    }
    done = subprocess.run(
        command, cwd=cwd, input=stdin, env=clean, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return done.stdout.decode()


def test_checksums_and_signature_cover_every_file(made: Path) -> None:
    """SHA256SUMS names each file of the release, and its signature is valid for the key alone."""
    dist = made / "dist"
    lines = [line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert sums == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in dist.iterdir()
        if not file.name.startswith("SHA256SUMS")
    }
    assert len(sums) == 4
    signers = made / "signers"
    signers.write_text(f"release@example.com {(made / 'key.pub').read_text()}")
    verify = ("ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "release@example.com", "-n", NAMESPACE)
    signed = (*verify, "-s", str(dist / "SHA256SUMS.sig"))
    text = (dist / "SHA256SUMS").read_bytes()
    assert "Good" in run(*signed, stdin=text)
    changed = subprocess.run(signed, input=text + b"x", capture_output=True, check=False, timeout=60)
    assert changed.returncode != 0


def test_nothing_is_overwritten(made: Path) -> None:
    """A folder with files is refused."""
    with pytest.raises(ReleaseFailed, match="not empty"):
        release(made / "dist")


def test_digests_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A release with a file that lacks an image is not made."""
    images = tmp_path / "images.txt"
    images.write_text(f"nats:1@sha256:{'a' * 64}\n")
    with pytest.raises(ReleaseFailed, match="without a digest"):
        release(tmp_path / "dist", images=images)
    assert not (tmp_path / "dist").exists()


def test_the_bill_of_materials_names_every_locked_package(made: Path) -> None:
    """Each pinned package is a component with the hashes of its files, and each image one with its digest."""
    bill = json.loads((made / "dist" / "dovecote.cdx.json").read_text())
    lock = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE)
    images = [tuple(image.split(":")) for image in named_images()]
    assert [(one["name"], one["version"]) for one in bill["components"]] == [*pinned, *images]
    packages = bill["components"][: len(pinned)]
    assert all(one["externalReferences"][0]["hashes"] for one in packages)
    recorded = (made / "dist" / "images.txt").read_text().splitlines()
    assert recorded == [f"{image}@sha256:{'a' * 64}" for image in named_images()]
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(set(references)) == len(references)
    assert bill_of_materials(ROOT, 0)["serialNumber"] == bill["serialNumber"]
    assert next(iter(locked("one==1 \\\n    --hash=sha256:" + "a" * 64))) == ("one", "1", ["a" * 64])


def test_the_wheel_may_be_published_and_holds_the_packages_alone(made: Path) -> None:
    """The wheel has metadata for an index, the licence, and no tests or scripts."""
    (wheel,) = (made / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    assert {name.split("/")[0] for name in names} == {
        *("dovecote", "gateway", "channels", "sandbox", "delivery", "egress"),
        next(name.split("/")[0] for name in names if ".dist-info" in name),
    }
    assert "Private ::" not in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "gateway/migrations/checksums.txt" in names
    assert "gateway/console/index.html" in names


def test_the_wheel_runs_in_an_environment_of_its_own(made: Path, tmp_path: Path) -> None:
    """Installed alone, the program explains itself, and `serve` becomes ready."""
    (wheel,) = (made / "dist").glob("*.whl")
    venv = tmp_path / "venv"
    uv = installer()
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(venv))
    options = ("--quiet", "--python", str(venv), "-c", str(ROOT / "constraints.txt"))
    run(*uv, "pip", "install", *options, wheel.name, cwd=wheel.parent)
    program = str(venv / "bin" / "dovecote")
    assert "serve" in run(program, "--help", cwd=tmp_path)
    assert run(program, "version", cwd=tmp_path).strip() in wheel.name
    with served(program, tmp_path) as url, urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
        assert json.load(answer)["status"] == "ready"
        assert "the installed version" in run(
            program, "upgrade", "check", "--data", str(tmp_path / "data"), "--url", url, cwd=tmp_path
        )


@pytest.mark.parametrize("version", ["3.11.0", "3.13"])
def test_the_tested_versions_install_together(version: str, tmp_path: Path) -> None:
    """Everything that can be installed, also to build the documentation, has a version for this Python."""
    declared = ("pyproject.toml", "--all-extras", "--group", "dev", "--group", "docs")
    wanted = (*declared, "--python-version", version, "--output-file", str(tmp_path / "resolved.txt"))
    run(*installer(), "pip", "compile", "--quiet", "-c", "constraints.txt", *wanted, cwd=ROOT)


def installer() -> tuple[str, ...]:
    """Return the command of uv, which the test command installs."""
    if found := shutil.which("uv"):
        return (found,)
    python = shutil.which("python3") or sys.executable
    if subprocess.run([python, "-m", "uv", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("uv is not installed")
    return (python, "-m", "uv")


@contextmanager
def served(program: str, folder: Path) -> Iterator[str]:
    """Run `serve` until the block ends, and return its address once it says `ready`."""
    log, port = folder / "log", reserve_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                program,
                "serve",
                "--data",
                str(folder / "data"),
                "--port",
                str(port),
                "--allow-unsandboxed-host",
            ],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath, "HOME": str(folder), "DOVECOTE_LOG_FORMAT": "json"},
        )
    try:
        end = time.monotonic() + BOUND
        while '"event": "ready"' not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
