"""The operator's settings of the host provider; every default works on a plain Linux host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, IPvAnyNetwork

from egress.typed_model import TypedModel


class HostSettings(TypedModel):
    """`[sandbox.host]` of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bubblewrap: Path | None = None
    """The bwrap to use; by default the system's if it is new enough, else the one from PyPI."""

    cgroups: bool = True
    """Whether control groups may be used; without them memory and processes are limited by rlimits."""

    max_file_bytes: Annotated[int, Field(ge=1024 * 1024)] = 2 * 1024**3
    """The largest single file in bytes that a command may write, sparse files included."""

    workspace_bytes: Annotated[int, Field(ge=1024 * 1024)] | None = None
    """The most bytes of a workspace whose sandbox record has no `diskGb`; unlimited by default."""

    network_helper: Path | None = None
    """The pasta or slirp4netns to use for `allow-all`; by default the system's."""

    network_filter: bool = True
    """Whether packets of allow-all sandboxes to private addresses are rejected."""

    reachable: tuple[IPvAnyNetwork, ...] = ()
    """Private networks that allow-all sandboxes may reach nevertheless, such as `10.1.2.0/24`."""

    callback_patience: Annotated[float, Field(gt=0)] = 600.0
    """Seconds for which a finished job retries its completion callback."""

    runtime_directories: tuple[Path, ...] = ()
    """More directories to search for node, uv and python3, before the usual ones."""
