"""Walk through a directory in which commands made what they liked, without following links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MAX_DEPTH = 256
"""Levels below a workspace or HOME that are entered: `os.fwalk` needs a frame and an open file for each."""


def walk(directory: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
    """Yield what `os.fwalk` yields, for directories that are not deeper than MAX_DEPTH."""
    top = len(directory.parts)
    for parent, names, plain, descriptor in os.fwalk(directory, follow_symlinks=False):
        yield parent, names, plain, descriptor
        if len(Path(parent).parts) - top >= MAX_DEPTH:
            names.clear()
