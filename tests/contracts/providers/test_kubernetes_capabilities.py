"""What `doctor` reports of a cluster, and which configurations of sandboxes are refused beforehand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kubernetes_service import TOKEN, TOKEN_WITHOUT_ROLE, kubernetes_service
from sandbox.config import SandboxConfig, problems
from sandbox.kubernetes import plugin


def test_doctor_reports_cluster_controller_and_role(tmp_path: Path) -> None:
    """The capabilities name the version, what sandboxes are, and every verb that the role lacks."""

    async def ask(token: str) -> dict[str, tuple[bool, str]]:
        async with kubernetes_service(tmp_path / "cluster", controller=token == TOKEN) as service:
            settings = plugin.settings(api_url=service.url, token=token)
            found = await asyncio.to_thread(plugin.capabilities, settings)
            return {one.name: (one.present, one.detail) for one in found}

    full = asyncio.run(ask(TOKEN))
    assert full["isolation"][0]
    assert "v1.36.0-loopback" in full["isolation"][1]
    assert full["controller"] == (True, "sandboxes are Sandbox objects of agents.x-k8s.io/v1beta1")
    assert full["permissions"] == (True, "the role allows what is needed")
    bare = asyncio.run(ask(TOKEN_WITHOUT_ROLE))
    assert not bare["controller"][0]
    assert "plain pods" in bare["controller"][1]
    assert not bare["permissions"][0]
    assert "get,create pods/exec" in bare["permissions"][1]
    (down,) = plugin.capabilities(plugin.settings(api_url="http://127.0.0.1:9", token="t"))
    assert (down.name, down.present) == ("isolation", False)


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"options": {"template": "base"}}, "/options/template"),
        ({"options": {"memoryGb": 2}}, "/options/memoryGb"),
        ({"options": {"image": "Not An Image"}}, "/options/image"),
        ({"network": {"mode": "restricted", "allowDomains": ["*.org"]}}, "/network/allowDomains/0"),
        ({"network": {"mode": "restricted", "allowCidrs": ["everything"]}}, "/network/allowCidrs"),
        ({"persistent": True, "options": {"persistentHome": False}}, "/options/persistentHome"),
        ({"options": {"persistentDiskGb": 3}}, "/options/persistentDiskGb"),
    ],
)
def test_what_it_cannot_do_is_said_beforehand(config: dict[str, Any], pointer: str) -> None:
    """A config that means nothing here is refused with its field and the remedy."""
    found = problems(SandboxConfig.model_validate({"provider": "kubernetes"} | config), plugin)
    assert [problem.pointer for problem in found] == [pointer]
