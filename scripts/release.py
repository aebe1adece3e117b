"""Build a release twice from the last commit, compare the bytes, write checksums, bill and signature.

    .venv/bin/python -m scripts.release dist --key ~/.ssh/release --images images.txt

The build starts from `git archive HEAD`, so that files which are not committed cannot get in. Its time is
SOURCE_DATE_EPOCH, by default that of the commit. `--images` records the digests of the images that the
Dockerfiles, compose.yaml and the chart name (`scripts.image_digests`). Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.image_digests import InvalidDigests, components_of, lines_of, named_images, read_digests

ROOT = Path(__file__).parents[1]
NAMESPACE = "dovecote-release"
"""The namespace of the signature, which `ssh-keygen -Y verify` asks for."""
SUMS, BILL, IMAGES = "SHA256SUMS", "dovecote.cdx.json", "images.txt"
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class ReleaseFailed(Exception):
    """The release was not made; nothing in the target folder is one."""


def release(target: Path, *, key: Path | None = None, images: Path | None = None) -> list[Path]:
    """Write a release into an empty folder and return its files; raises ReleaseFailed."""
    if target.exists() and any(target.iterdir()):
        raise ReleaseFailed(f"{target} is not empty: name a new folder")
    digests = _digests_of(images) if images else {}
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct").decode().strip()
    with tempfile.TemporaryDirectory(prefix="dovecote-release-") as scratch:
        builds = [_build(Path(scratch) / name, epoch) for name in ("first", "second")]
        _require_same_bytes(*builds)
        target.mkdir(parents=True, exist_ok=True)
        files = [Path(shutil.copy(file, target)) for file in builds[0]]
    if digests:
        files.append(target / IMAGES)
        files[-1].write_text(lines_of(digests))
    bill, listed = target / BILL, bill_of_materials(ROOT, int(epoch))
    listed["components"] += components_of(digests)
    bill.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")
    sums = target / SUMS
    sums.write_text("".join(f"{_sha256(file)}  {file.name}\n" for file in sorted([*files, bill])))
    made = [*files, bill, sums]
    return [*made, _sign(sums, key)] if key else made


def _digests_of(images: Path) -> Mapping[str, str]:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        return read_digests(images.read_text(), named_images(), f"dovecote:{version}")
    except InvalidDigests as error:
        raise ReleaseFailed(f"{images}: {error}") from error


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S603,S607


def _build(folder: Path, epoch: str) -> list[Path]:
    """Build wheel and source distribution from the last commit, in a folder of their own."""
    source, out = folder / "source", folder / "out"
    source.mkdir(parents=True)
    unpack = ["tar", "-xf", "-", "-C", str(source)]
    subprocess.run(unpack, input=_git("archive", "--format=tar", "HEAD"), check=True)  # noqa: S603
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t", "sdist", "-t", "wheel"]
    done = subprocess.run(  # noqa: S603
        command,
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseFailed(f"the build failed: {(done.stderr or done.stdout).strip()}")
    return sorted(out.iterdir())


def _require_same_bytes(first: list[Path], second: list[Path]) -> None:
    sums = [{file.name: _sha256(file) for file in build} for build in (first, second)]
    if sums[0] != sums[1]:
        raise ReleaseFailed(f"two builds of one commit differ: {sums[0]} and {sums[1]}")


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def locked(lock: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, version and SHA-256 of the files of each package of requirements.lock."""
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock):
        if found := _PINNED.match(block):
            yield found[1], found[2], _HASH.findall(block)


def bill_of_materials(root: Path, epoch: int) -> dict[str, Any]:
    """Return the CycloneDX document of the package and of everything that requirements.lock names."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    lock = (root / "requirements.lock").read_text()
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{name}-{version}-{hashlib.sha256(lock.encode()).hexdigest()}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                **_component(name, version, "application"),
                "licenses": [{"expression": project["license"]}],
            },
        },
        "components": [
            {
                **_component(package, pinned, "library"),
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": f"pkg:pypi/{package}@{pinned}",
                        "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
                    }
                ],
            }
            for package, pinned, hashes in locked(lock)
        ],
    }


def _component(name: str, version: str, kind: str) -> dict[str, Any]:
    reference = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    return {"type": kind, "name": name, "version": version, "purl": reference, "bom-ref": reference}


def _sign(sums: Path, key: Path) -> Path:
    """Sign the checksums with an SSH key; ssh-keygen asks for its passphrase."""
    signature = sums.with_name(f"{sums.name}.sig")
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode or not signature.is_file():
        raise ReleaseFailed(f"{sums.name} could not be signed with {key}: {done.stderr.strip()}")
    return signature


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="a new folder for the files of the release")
    parser.add_argument("--key", type=Path, help="an SSH key that signs SHA256SUMS")
    parser.add_argument("--images", type=Path, help="a file with lines NAME:TAG@sha256:DIGEST")
    options = parser.parse_args()
    try:
        made = release(options.target, key=options.key, images=options.images)
    except ReleaseFailed as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write("".join(f"{file}\n" for file in made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
