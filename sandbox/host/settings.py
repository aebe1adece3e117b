"""What an operator may set of the host provider; every default works on a plain Linux machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class HostSettings(BaseModel):
    """`[sandbox.host]` of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bubblewrap: Path | None = None
    """The bwrap to use; by default the system's when it is new enough, else the one that came from PyPI."""

    cgroups: bool = True
    """Whether control groups may be used; without them memory and processes are bounded by rlimits."""

    max_file_bytes: Annotated[int, Field(ge=1024 * 1024)] = 2 * 1024**3
    """The largest single file a command may write, sparse files included."""

    workspace_bytes: Annotated[int, Field(ge=1024 * 1024)] | None = None
    """What a workspace may hold where its sandbox record says no `diskGb`; by default nothing bounds it."""

    network_helper: Path | None = None
    """The pasta or slirp4netns to use for `allow-all`; by default the system's."""

    callback_patience: Annotated[float, Field(gt=0)] = 600.0
    """Seconds a finished job goes on telling the gateway."""

    runtime_directories: tuple[Path, ...] = ()
    """More directories to look for node, uv and python3 in, before the usual ones."""
