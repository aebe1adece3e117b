"""Options of sandbox records as documents print them: accepted where they mean something, else refused."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox import registry
from sandbox.config import SandboxConfig, problems
from sandbox.registry import built_in

PROVIDERS = sorted(built_in())
SYNCED = {"agentrun", "daytona", "kubernetes", "lambda"}


def found(provider: str, **options: Any) -> dict[str, str]:
    """Return the problems of a record with these options, by their pointers."""
    persistent = provider != "lambda"
    config = SandboxConfig.model_validate(
        {"provider": provider, "persistent": persistent, "options": options}
    )
    return {one.pointer: one.detail for one in problems(config, registry.plugin(provider))}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_root_of_workspaces_may_be_named(provider: str) -> None:
    """It is the same everywhere; another one is refused with the right one."""
    assert found(provider, workspaceRoot="/mnt/workspaces") == {}
    assert "/mnt/workspaces" in found(provider, workspaceRoot="/data")["/options/workspaceRoot"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_mount_of_buckets_is_accepted_where_files_are_synced(provider: str) -> None:
    """Elsewhere the refusal names the provider and the operator's setting."""
    refused = found(provider, mountAwsS3Buckets=True)
    if provider in SYNCED:
        assert refused == {}
    else:
        assert provider in refused["/options/mountAwsS3Buckets"]
        assert "workspaces.store" in refused["/options/mountAwsS3Buckets"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("option", ["apiKey", "apiUrl", "organizationId", "target"])
def test_options_of_the_operator_are_refused_without_their_value(provider: str, option: str) -> None:
    """A key that is in a record by mistake is not repeated in the answer."""
    refused = found(provider, **{option: "a-secret-value"})
    assert f"[sandbox.{provider}]" in refused[f"/options/{option}"]
    assert "a-secret-value" not in str(refused)


def test_a_record_for_kubernetes_as_printed_is_accepted() -> None:
    """HOME may be a path there, and a size of its volume."""
    options = {
        "mountAwsS3Buckets": True,
        "workspaceRoot": "/mnt/workspaces",
        "persistentDiskGb": 10,
        "persistentHome": "/home/node",
    }
    assert found("kubernetes", **options) == {}
    for path in ("/", "/etc", "/home/../etc", "home/node", "/home/a/b", "/mnt/workspaces"):
        assert "/options/persistentHome" in found("kubernetes", persistentHome=path)


@pytest.mark.parametrize("provider", ["docker", "host", "e2b", "daytona"])
def test_another_home_is_refused_with_the_right_one(provider: str) -> None:
    """`true` and the provider's own path are accepted."""
    assert found(provider, persistentHome=True) == {}
    refused = found(provider, persistentHome="/home/node")["/options/persistentHome"]
    home = refused.split("HOME is ")[1].split(" on ")[0]
    assert found(provider, persistentHome=home) == {}
