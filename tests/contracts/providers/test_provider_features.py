"""Features beyond the everyday ones: a declared one works, an undeclared one raises Unsupported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxError
from sandbox.model import ExecRequest
from sandbox.port import Feature, Provider
from sandbox_rigs import ProviderRig, all_rigs


@pytest.fixture(params=list(all_rigs()))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return each provider in turn, closed."""
    return all_rigs()[request.param](tmp_path)


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return each provider, open; its sandboxes are destroyed afterwards."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


async def test_home_is_saved_and_restored(provider: Provider, rig: ProviderRig) -> None:
    """What HOME held, links and modes too, is there again in a sandbox that was made anew."""
    sandbox = await provider.create(rig.spec(persistent=True))
    if Feature.SNAPSHOT not in rig.plugin.features:
        with pytest.raises(FeatureUnsupported):
            [chunk async for chunk in sandbox.save()]
        return
    script = (
        "mkdir -p ~/bin; printf '#!/bin/sh\\necho hello\\n' > ~/bin/greet;"
        "chmod +x ~/bin/greet; ln -s greet ~/bin/link"
    )
    await sandbox.run(ExecRequest(script=script))
    saved = [chunk async for chunk in sandbox.save()]
    await provider.destroy(sandbox.id)
    again = await provider.create(rig.spec(persistent=True))

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in saved:
            yield chunk

    await again.restore(chunks())
    result = await again.run(ExecRequest(script="~/bin/link && touch ~/bin/new && echo own"))
    assert result.stdout == b"hello\nown\n"


async def test_what_is_no_snapshot_is_refused(provider: Provider, rig: ProviderRig) -> None:
    """Bytes that are no archive are an error of the port's, and HOME stays as it was."""
    sandbox = await provider.create(rig.spec(persistent=True))
    await sandbox.run(ExecRequest(script="echo kept > ~/file"))

    async def chunks() -> AsyncIterator[bytes]:
        yield b"no archive"

    with pytest.raises(SandboxError):
        await sandbox.restore(chunks())
    assert (await sandbox.run(ExecRequest(script="cat ~/file"))).stdout == b"kept\n"


async def test_a_port_has_a_url_or_a_reason(provider: Provider, rig: ProviderRig) -> None:
    """Where ports are exposed there is a URL, or it is refused; elsewhere it is Unsupported."""
    sandbox = await provider.create(rig.spec())
    if Feature.EXPOSE not in rig.plugin.features:
        with pytest.raises(FeatureUnsupported):
            await sandbox.expose(8080)
        return
    with suppress(ProviderRefused):
        assert (await sandbox.expose(8080)).startswith(("http://", "https://"))
