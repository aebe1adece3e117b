"""Features beyond the everyday ones: a declared one works, an undeclared one raises Unsupported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.errors import Refused, SandboxError, Unsupported
from sandbox.model import Command
from sandbox.port import Feature, Provider
from sandbox_rigs import Rig, every_rig


@pytest.fixture(params=list(every_rig()))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    """Return each provider in turn, closed."""
    return every_rig()[request.param](tmp_path)


@pytest.fixture
async def provider(rig: Rig) -> AsyncIterator[Provider]:
    """Return each provider, open; its sandboxes are destroyed afterwards."""
    async with rig.opened() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


async def test_home_is_saved_and_restored(provider: Provider, rig: Rig) -> None:
    """What HOME held, links and modes too, is there again in a sandbox that was made anew."""
    sandbox = await provider.create(rig.spec(persistent=True))
    if Feature.SNAPSHOT not in rig.plugin.features:
        with pytest.raises(Unsupported):
            [chunk async for chunk in sandbox.save()]
        return
    script = (
        "mkdir -p ~/bin; printf '#!/bin/sh\\necho hello\\n' > ~/bin/greet;"
        "chmod +x ~/bin/greet; ln -s greet ~/bin/link"
    )
    await sandbox.run(Command(script=script))
    saved = [chunk async for chunk in sandbox.save()]
    await provider.destroy(sandbox.id)
    again = await provider.create(rig.spec(persistent=True))

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in saved:
            yield chunk

    await again.restore(chunks())
    result = await again.run(Command(script="~/bin/link && touch ~/bin/new && echo own"))
    assert result.stdout == b"hello\nown\n"


async def test_what_is_no_snapshot_is_refused(provider: Provider, rig: Rig) -> None:
    """Bytes that are no archive are an error of the port's, and HOME stays as it was."""
    sandbox = await provider.create(rig.spec(persistent=True))
    await sandbox.run(Command(script="echo kept > ~/file"))

    async def chunks() -> AsyncIterator[bytes]:
        yield b"no archive"

    with pytest.raises(SandboxError):
        await sandbox.restore(chunks())
    assert (await sandbox.run(Command(script="cat ~/file"))).stdout == b"kept\n"


async def test_a_port_has_a_url_or_a_reason(provider: Provider, rig: Rig) -> None:
    """Where ports are exposed there is a URL, or it is refused; elsewhere it is Unsupported."""
    sandbox = await provider.create(rig.spec())
    if Feature.EXPOSE not in rig.plugin.features:
        with pytest.raises(Unsupported):
            await sandbox.expose(8080)
        return
    with suppress(Refused):
        assert (await sandbox.expose(8080)).startswith(("http://", "https://"))
