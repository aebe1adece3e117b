"""The host provider: commands in bubblewrap namespaces on the gateway's own host.

The manifest is imported lazily, because the job supervisor imports modules of this package and must stay
small: no pydantic, no asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.port import ProviderPlugin

    plugin: ProviderPlugin


def __getattr__(name: str) -> object:
    if name == "plugin":
        from sandbox.host.manifest import plugin as manifest

        return manifest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
