"""What the expose tool promises a model, in the sandboxes of every provider that can expose a port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.expose import expose
from gateway.tools.tool import BadArguments, Desk
from sandbox.config import SandboxConfig
from sandbox.errors import Refused
from sandbox.port import Feature
from sandbox.registry import installed
from sandbox_rigs import Rig, every_rig
from tool_contexts import desk_of

EXPOSING = [name for name in every_rig() if Feature.EXPOSE in installed()[name.partition("-")[0]].features]


@pytest.fixture(params=EXPOSING)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    """Return each provider that exposes ports, closed."""
    return every_rig()[request.param](tmp_path)


@pytest.fixture
async def desk(rig: Rig) -> AsyncIterator[Desk]:
    """Return a desk with a sandbox."""
    async with rig.opened() as provider:
        sandbox = await provider.create(rig.spec())
        yield desk_of(SandboxConfig(provider=rig.plugin.name, persistent=True), sandbox, rig)
        await provider.destroy(sandbox.id)


async def test_a_port_is_told_by_its_url_or_the_reason_against_it(desk: Desk) -> None:
    """The model gets a URL, of port 8080 where it names none; or it is refused in words."""
    for args, port in (({"port": 3000}, 3000), ({}, 8080)):
        if desk.bench.provider == "docker":
            with pytest.raises(Refused, match="allow-all"):
                await expose.act(desk, args, "key")
            continue
        result = await expose.act(desk, args, "key")
        told = json.loads(result.content)
        assert told["url"].startswith(("http://", "https://"))
        assert dict(result.detail) == {"port": port, "url": told["url"]}
    for wrong in (0, 65536, "80", True, 8080.0):
        with pytest.raises(BadArguments, match="port"):
            await expose.act(desk, {"port": wrong}, "key")


def test_it_is_offered_where_it_can_be_carried_out(tmp_path: Path) -> None:
    """A reserved sandbox of a provider that exposes ports has the tool, and others do not."""
    rig = every_rig()["host-rlimits"](tmp_path)

    def offered(provider: str, **config: Any) -> bool:
        return expose.fits(desk_of(SandboxConfig(provider=provider, **config), None, rig))

    assert offered("e2b", persistent=True)
    assert offered("daytona", persistent=True)
    assert not offered("e2b")
    assert not offered("host", persistent=True)
    careful = [
        expose.asks(SandboxConfig.model_validate({"permissionMode": mode})) for mode in ("ask", "bypass")
    ]
    assert careful == [True, False]
