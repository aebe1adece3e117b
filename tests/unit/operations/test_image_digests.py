"""The digests of images in a release: every image that a file names can be pinned, and is recorded."""

from __future__ import annotations

import re

import pytest

from scripts.image_digests import (
    DOCKERFILES,
    ROOT,
    InvalidDigests,
    components_of,
    lines_of,
    named_images,
    read_digests,
)

NAMED = ["nats:2", "python:3.11-slim"]
GOOD = f"nats:2@sha256:{'a' * 64}\n\npython:3.11-slim@sha256:{'b' * 64}\n"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_every_base_of_a_dockerfile_is_an_argument(name: str) -> None:
    """No FROM names an image by itself, so that a build argument can pin each."""
    text = (ROOT / name).read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases
    assert all(base in stages or re.fullmatch(r"\$\{[A-Z]+\}", base) for base in bases)


def test_every_image_of_compose_and_chart_is_listed() -> None:
    """An image that is added to a file is one of a release; Dockerfiles are searched for in the tree."""
    listed = named_images()
    assert {"nats:2.15-alpine", "postgres:17-alpine", "python:3.11-slim-bookworm"} <= set(listed)
    compose = (ROOT / "compose.yaml").read_text()
    values = (ROOT / "deploy/helm/dovecote/values.yaml").read_text()
    lines = re.findall(r"^\s+image: (.+)$", compose + values, re.MULTILINE)
    assert all(any(image in line for image in listed) for line in lines), lines
    skipped = {".venv", "node_modules"}
    found = {
        str(path.relative_to(ROOT)) for path in ROOT.rglob("Dockerfile*") if not skipped & set(path.parts)
    }
    assert found == set(DOCKERFILES)


def test_digests_become_lines_and_components() -> None:
    """The file of a release is sorted and complete; the image of the release itself may be in it."""
    own = f"dovecote:1.0@sha256:{'c' * 64}\n"
    found = read_digests(GOOD + own, NAMED, "dovecote:1.0")
    assert lines_of(found) == own + GOOD.replace("\n\n", "\n")
    first, *_ = components_of(found)
    assert (first["type"], first["name"], first["version"]) == ("container", "dovecote", "1.0")
    assert first["hashes"] == [{"alg": "SHA-256", "content": "c" * 64}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.splitlines()[0], "without a digest: ['python:3.11-slim']"),
        (GOOD + f"redis:7@sha256:{'d' * 64}", "named nowhere: ['redis:7']"),
        (GOOD + GOOD, "two lines"),
        (GOOD.replace("a" * 64, "a" * 63), "is not NAME:TAG@sha256:DIGEST"),
        ("nats:2\n", "is not NAME:TAG@sha256:DIGEST"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(text: str, words: str) -> None:
    """A missing, unknown, repeated or shortened line names itself."""
    with pytest.raises(InvalidDigests, match=re.escape(words)):
        read_digests(text, NAMED, "dovecote:1.0")
