"""Every provider applies a resource setting of a record, or refuses it with its field, value and remedy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiServer, open_api_server
from commands import run_to_end
from sandbox import registry
from sandbox.config import SandboxConfig, SandboxOptions, problems
from sandbox.model import ResourceSupport
from source_trees import sources

SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "memory_limit": ("/memoryLimit", {"memoryLimit": 640}),
    "cpu": ("/options/cpu", {"options": {"cpu": 2}}),
    "memory_gb": ("/options/memoryGb", {"options": {"memoryGb": 2}}),
    "disk_gb": ("/options/diskGb", {"options": {"diskGb": 2}}),
    "persistent_disk_gb": ("/options/persistentDiskGb", {"options": {"persistentDiskGb": 2}}),
}
"""The pointer of each setting, and a config with it."""

READS = {
    "memory_limit": "memory_mb",
    "cpu": "cpus",
    "memory_gb": "memory_gb",
    "disk_gb": "disk_gb",
    "persistent_disk_gb": "persistent_disk_gb",
}
"""What of a spec a provider reads to apply a setting."""

QUOTAS = "disk_quota"
"""The module with which a provider applies `diskGb` to a workspace of this machine."""

PROVIDERS = sorted(registry.built_in())
EACH = [(provider, setting) for provider in PROVIDERS for setting in SETTINGS]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running face."""
    async with open_api_server(tmp_path) as running:
        yield running


def remedy_of(provider: str, setting: str) -> str | None:
    """Return what a provider says to do instead, None if it applies the setting."""
    remedy: str | None = getattr(registry.plugin(provider).resources, setting)
    return remedy


def test_every_setting_is_declared() -> None:
    """Each number of a record's options is a resource setting, and each setting is tested here."""
    declared = {one.name for one in fields(ResourceSupport)}
    numbers = {name for name, one in SandboxOptions.model_fields.items() if "float" in str(one.annotation)}
    assert declared == set(SETTINGS) == {"memory_limit", *numbers}


@pytest.mark.parametrize(("provider", "setting"), EACH)
def test_a_setting_has_an_effect_or_is_refused(provider: str, setting: str) -> None:
    """The declaration decides what the check of records says."""
    pointer, config = SETTINGS[setting]
    parsed = SandboxConfig.model_validate({"provider": provider, "persistent": True, **config})
    found = [one.detail for one in problems(parsed, registry.plugin(provider)) if one.pointer == pointer]
    remedy = remedy_of(provider, setting)
    expected = f"{pointer.rpartition('/')[2]} {640 if setting == 'memory_limit' else 2} would have no effect"
    assert found == ([] if remedy is None else [f"{expected} on {provider}: {remedy}"])


@pytest.mark.parametrize(("provider", "setting"), EACH)
def test_a_setting_that_a_provider_applies_is_read(provider: str, setting: str) -> None:
    """The provider's modules read it if and only if the manifest says that it has an effect."""
    folder = registry.plugin(provider).open.__module__.removesuffix(".manifest").replace(".", "/")
    modules = [one for one in sources("sandbox") if one.name.startswith(f"{folder}/")]
    assert modules
    words = {QUOTAS, READS[setting]} if setting == "disk_gb" else {READS[setting]}
    reads = [f".{word}" for word in words] + [f'"{word}"' for word in words]
    found = [one.name for one in modules if any(word in one.text for word in reads)]
    assert bool(found) == (remedy_of(provider, setting) is None), found


def test_the_default_config_is_valid_on_every_provider() -> None:
    """A default that a provider does not apply is no setting of the record."""
    for provider in PROVIDERS:
        assert not problems(SandboxConfig(provider=provider), registry.plugin(provider)), provider


async def test_the_check_of_the_settings_refuses_a_setting_without_effect(tmp_path: Path) -> None:
    """`config check` names the table's field, the value and what to do."""
    table = '[sandboxes.heavy]\nprovider = "e2b"\n'
    assert await check_config(tmp_path, table) == (0, "")
    code, said = await check_config(tmp_path, f"{table}memoryLimit = 2048\n")
    assert code == 2
    assert "/sandboxes/heavy/memoryLimit: memoryLimit 2048 would have no effect on e2b: the template" in said


async def check_config(directory: Path, text: str) -> tuple[int | None, str]:
    """Check a settings file; returns the exit code and the errors."""
    (directory / "dovecote.toml").write_text(text)
    code, _output, errors = await run_to_end("config", "check", cwd=directory)
    return code, errors


@pytest.mark.parametrize("provider", ["agentrun", "daytona", "e2b"])
async def test_the_api_refuses_a_setting_without_effect(api: ApiServer, provider: str) -> None:
    """A 422 names the field, the value and what to do; without the setting the record is created."""
    config: dict[str, Any] = {"provider": provider, "memoryLimit": 2048}
    refused = await api.mine.call("POST", "/accounts/me/sandboxes", {"name": "mine", "config": config})
    (problem,) = refused.body["errors"]
    assert (refused.status, problem["pointer"]) == (422, "/config/memoryLimit")
    assert f"memoryLimit 2048 would have no effect on {provider}: the " in problem["detail"]
    del config["memoryLimit"]
    assert (
        await api.mine.call("POST", "/accounts/me/sandboxes", {"name": "mine", "config": config})
    ).status == 201
    grown = await api.mine.call("PATCH", "/accounts/me/sandboxes/mine", {"config": {"memoryLimit": 2048}})
    assert grown.status == 422
