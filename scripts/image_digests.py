"""The images that the Dockerfiles, compose.yaml and the chart name, and their digests in a release.

    .venv/bin/python -m scripts.image_digests      print the images, one a line

The repository names tags. Who makes a release reads the digests from a registry to trust, and the release
records them (`scripts.release --images`). Each image can be replaced by one with a digest: by a build
argument of its Dockerfile, a variable of compose.yaml, or a value of the chart.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCKERFILES = ("Dockerfile", "images/sandbox/Dockerfile", "deploy/lambda/Dockerfile")
OTHERS = {
    "compose.yaml": re.compile(r"^\s+image: \$\{[A-Z_]+:-([^}\s]+)\}$", re.MULTILINE),
    "deploy/helm/dovecote/values.yaml": re.compile(r"^\s+image: (\S+:\S+)$", re.MULTILINE),
}
_ARGUMENT = re.compile(r"^ARG [A-Z_]+=(\S+:\S+)$", re.MULTILINE)
_LINE = re.compile(r"(?P<name>[a-z0-9][a-z0-9./_-]*):(?P<tag>[\w.-]+)@sha256:(?P<digest>[0-9a-f]{64})")


class InvalidDigests(ValueError):
    """The file of digests does not fit the images; the text says how."""


def named_images(root: Path = ROOT) -> list[str]:
    """Return the images that the files name, as NAME:TAG."""
    found = {image for name in DOCKERFILES for image in _ARGUMENT.findall((root / name).read_text())}
    found |= {
        image for name, pattern in OTHERS.items() for image in pattern.findall((root / name).read_text())
    }
    return sorted(found)


def read_digests(text: str, named: list[str], own: str) -> Mapping[str, str]:
    """Return the digest of each image from lines NAME:TAG@sha256:DIGEST; raises InvalidDigests.

    Each named image has one line. `own` is the name of the image of this release, which may have one too.
    """
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidDigests(f"{line!r} is not NAME:TAG@sha256:DIGEST")
        image = f"{match['name']}:{match['tag']}"
        if image in found:
            raise InvalidDigests(f"{image} has two lines")
        found[image] = match["digest"]
    missing = [image for image in named if image not in found]
    unknown = [image for image in found if image not in named and image != own]
    if missing or unknown:
        raise InvalidDigests(f"without a digest: {missing}; named nowhere: {unknown}")
    return found


def lines_of(digests: Mapping[str, str]) -> str:
    """Return the file of a release."""
    return "".join(f"{image}@sha256:{digest}\n" for image, digest in sorted(digests.items()))


def components_of(digests: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the images as components of a bill of materials."""
    for image, digest in sorted(digests.items()):
        name, _, tag = image.rpartition(":")
        reference = f"pkg:oci/{name.rpartition('/')[2]}@sha256%3A{digest}?tag={tag}"
        yield {
            "type": "container",
            "name": name,
            "version": tag,
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "purl": reference,
            "bom-ref": reference,
        }


if __name__ == "__main__":
    sys.stdout.write("".join(f"{image}\n" for image in named_images()))
