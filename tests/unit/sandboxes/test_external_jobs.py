"""A job in an external sandbox is found whatever the sandbox record names since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_sandboxes import MemoryProvider, MemorySandbox, plugin
from sandbox.errors import SandboxGone
from sandbox.lifecycle.external import ExternalProvider
from sandbox.model import BackgroundJob, BackgroundJobState, SandboxId, SandboxSpec, external_id
from sandbox.port import Feature, Sandbox

SPEC = SandboxSpec(label="dovecote-here-one", namespace="space", external="tools")


class OutsideProvider(MemoryProvider):
    """A provider with sandboxes that others made, each known by its name."""

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of a name."""
        await self.connect(SandboxId(spec.external), spec)
        used = external_id(spec.external, "first")
        self.instances[used] = self.instances[SandboxId(spec.external)]
        return MemorySandbox(used, self.instances)


@pytest.mark.parametrize("name", ["other", ""])
async def test_a_job_outlives_a_change_of_the_external_sandbox(name: str) -> None:
    """As it was created it is used still; a command needs the one that the record names now."""
    inside = OutsideProvider()
    for one in ("tools", "other"):
        made = await inside.create(replace(SPEC, label=one, external=""))
        inside.instances[SandboxId(one)] = inside.instances.pop(made.id)
    declared = replace(plugin, features=plugin.features | {Feature.EXTERNAL})
    provider = ExternalProvider(inside, declared)
    inside.instances[SandboxId("tools")].jobs["job_1"] = BackgroundJob(id="job_1", script="true", token="t")
    used = external_id("tools", "first")
    changed = replace(SPEC, external=name)
    with pytest.raises(SandboxGone):
        await provider.connect(used, changed)
    found = await provider.connect(used, replace(changed, as_created=True))
    assert (await found.report("job_1")).state is BackgroundJobState.RUNNING
    del inside.instances[SandboxId("tools")]
    with pytest.raises(SandboxGone):
        await provider.connect(used, replace(changed, as_created=True))
