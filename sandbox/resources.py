"""Which resource settings of a sandbox record a provider applies, and what to do instead of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.config import SandboxConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSupport:
    """For each resource setting None if the provider applies it, else what to do instead.

    A setting that a provider does not apply is refused in its sandbox records. No field has a default, so
    that each provider declares each setting.
    """

    memory_limit: str | None
    cpu: str | None
    memory_gb: str | None
    disk_gb: str | None
    persistent_disk_gb: str | None

    def refused(self, config: SandboxConfig, provider: str) -> Iterator[tuple[str, str]]:
        """Yield pointer and detail of each setting that is set and has no effect on the provider."""
        for one in fields(self):
            remedy = getattr(self, one.name)
            holder, below = (config, "") if one.name == "memory_limit" else (config.options, "/options")
            if remedy is not None and one.name in holder.model_fields_set:
                value, name = getattr(holder, one.name), type(holder).model_fields[one.name].alias or one.name
                if value is not None:
                    detail = f"{name} {value:g} would have no effect on {provider}: {remedy}"
                    yield f"{below}/{name}", detail
