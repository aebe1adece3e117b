"""Revision files of the database are never edited: installations have applied them as they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gateway.migrations

FOLDER = Path(gateway.migrations.__file__).parent


def test_no_revision_file_has_changed() -> None:
    """Each revision has its SHA-256 in checksums.txt; a schema change is a new file with a new line."""
    lines = (FOLDER / "checksums.txt").read_text().splitlines()
    expected = {name: digest for digest, name in (line.split() for line in lines)}
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (FOLDER / "versions").glob("[0-9]*.py")
    }
    assert found == expected, "never edit a revision: write a new one with gateway.migrations.write"


def test_revisions_are_numbered_in_order() -> None:
    """Revision files are named 0001, 0002 and so on, so that the newest is the highest number."""
    numbers = sorted(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("[0-9]*.py"))
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    assert gateway.migrations.newest() == numbers[-1]
