"""Disks of a few megabytes, which a test can fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest


@contextmanager
def mount_small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk at a directory that is created; skips the test without the right to mount."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_disk(file: FileIO) -> None:
    """Write to a file until its disk is full."""
    try:
        while True:
            file.write(b"\0" * 65536)
    except OSError:
        return
