"""The rigs of the built-in providers, each with the variants in which it is tested.

A provider has a module `<provider>_rig` beside this one with a table VARIANTS of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from sandbox.host.settings import HostSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig

_WAYS = {
    "control_groups": "a real engine: bubblewrap with control groups",
    "rlimits": "a real engine: bubblewrap with rlimits, as without control groups",
    "plain": "without isolation (`--allow-unsandboxed-host`)",
}


def _host(name: str, directory: Path, *, isolated: bool = True, **settings: Any) -> ProviderRig:
    return ProviderRig(
        name=name,
        plugin=built_in()["host"],
        settings=HostSettings(**settings),
        directory=directory,
        isolated=isolated,
        runs_on=f"{_WAYS[name]}; this machine's kernel, Linux {os.uname().release}",
    )


RigFactory = Callable[[Path], ProviderRig]
VARIANTS: dict[str, dict[str, RigFactory]] = {
    "host": {
        "control_groups": lambda directory: _host("control_groups", directory),
        "rlimits": lambda directory: _host("rlimits", directory, cgroups=False),
        "plain": lambda directory: _host(
            "plain", directory, isolated=False, bubblewrap=failing_bubblewrap(directory)
        ),
    },
}


def variants_of(provider: str) -> dict[str, RigFactory]:
    """Return the variants of a built-in provider; raises ImportError for one without a rig."""
    if provider not in VARIANTS:
        VARIANTS[provider] = import_module(f"{provider}_rig").VARIANTS
    return VARIANTS[provider]


def all_rigs() -> dict[str, RigFactory]:
    """Return the variants of all built-in providers by name."""
    return {f"{name}-{way}": make for name in built_in() for way, make in variants_of(name).items()}


def failing_bubblewrap(directory: Path) -> Path:
    """Return a bwrap that fails as on a kernel without user namespaces."""
    program = directory / "refusing-bwrap"
    program.write_text('#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n')
    program.chmod(0o755)
    return program
