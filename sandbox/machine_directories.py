"""Check the directories of this machine that are mounted into sandboxes, when they are mounted."""

from __future__ import annotations

from pathlib import Path

from sandbox.errors import ProviderRefused
from sandbox.model import BindMount


def check_source(mount: BindMount) -> Path:
    """Return the directory to mount; raises ProviderRefused unless it is a directory and no link leads to it.

    The operator lists real paths. A link in one could lead to a directory that the operator did not list.
    """
    source = Path(mount.source)
    if not source.is_absolute() or source.resolve() != source:
        raise ProviderRefused(
            f"{mount.source!r} cannot be mounted: it goes through a link; the operator lists real paths"
        )
    if not source.is_dir():
        raise ProviderRefused(
            f"{mount.source!r} cannot be mounted: there is no such directory on this machine"
        )
    return source
