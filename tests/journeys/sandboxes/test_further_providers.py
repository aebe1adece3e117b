"""A provider with a table in the settings is open beside the default one, and records may name it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api_server import ApiClient
from gateway.config.sandbox_settings import SandboxSettings
from gateway.environments.backends import enabled_providers
from gateway_process import gateway

SUPPORT = Path(__file__).parents[2] / "support"


def install(site: Path) -> None:
    """Write a distribution with a provider's entry point, as pip would."""
    about = site / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dovecote.sandboxes]\nmemory = memory_sandboxes:plugin\n")


@pytest.mark.parametrize("named", [True, False])
async def test_a_record_may_name_a_provider_that_has_a_table(tmp_path: Path, *, named: bool) -> None:
    """With `[sandbox.memory]` its commands run there; without, they are refused with the remedy."""
    install(tmp_path / "site")
    settings = tmp_path / "dovecote.toml"
    settings.write_text("[sandbox.memory]\n" if named else "")
    path = os.pathsep.join([str(tmp_path / "site"), str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    options = ["--config", str(settings)]
    async with (
        gateway(tmp_path / "data", env={"PYTHONPATH": path}, options=options) as process,
        process.http() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)
        sandbox = {"name": "box", "config": {"provider": "memory"}}
        assert (await mine.call("POST", "/accounts/me/sandboxes", sandbox)).status == 201
        agent = {"name": "there", "config": {"model": "builtin:shell", "sandbox": "box"}}
        assert (await mine.call("POST", "/accounts/me/agents", agent)).status == 201
        asked = {"model": "there", "messages": [{"role": "user", "content": "!echo pigeon"}]}
        reported = (await mine.call("POST", "/v1/chat/completions", asked)).body["choices"][0]["message"][
            "content"
        ]
    assert ("pigeon" in reported) is named
    assert ("'memory' is not open here" in reported) is not named


def test_what_is_not_installed_is_not_opened() -> None:
    """This machine's provider and the chosen one are always open; a table of an unknown one opens nothing."""
    given = SandboxSettings.model_validate({"provider": "e2b", "docker": {}, "nowhere": {}})
    assert enabled_providers(given) == ["docker", "e2b", "host"]
    assert enabled_providers(SandboxSettings()) == ["host"]
