"""A chat, a failing test, a pull request: through kill -9 of the gateway, without a secret in the sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import docker_engine
from bot_messages import wait_until_settled
from code_hosts import API_HOST, GIT_HOST, CodeHosts, code_hosts
from gateway_process import GatewayProcess, channel_env, reserve_port
from group_room import ADA, GroupRoom
from group_rooms import open_group_room
from kubernetes_rig import IMAGE, KUBECONFIG
from kubernetes_service import TOKEN
from openai_server import OpenAIServer
from process_calls import call
from pull_request_api import WEB
from pull_request_model import (
    BEGUN,
    BRANCH,
    FILES,
    GO_ORDER,
    MENDED,
    NOTHING_FOUND,
    OPENED,
    ORDER,
    REPOSITORY,
    SEARCH_ORDER,
    SEARCHED,
    PullRequestModel,
)
from secret_scan import files_containing
from service_processes import service_url


def provider_env(provider: str) -> dict[str, str]:
    """Return the settings of a gateway whose sandboxes are of this provider; skips without an engine."""
    if provider == "host":
        return {}
    if provider == "kubernetes":
        return {"SANDBOX_PROVIDER": "kubernetes", **cluster_env()}
    return {
        "SANDBOX_PROVIDER": "docker",
        "DOCKER_HOST": docker_engine.shared_engine().host,
        "DOVECOTE_SANDBOX__DOCKER__IMAGE": docker_engine.IMAGE,
        "DOVECOTE_SANDBOX__SNAPSHOTS": "local",
    }


def cluster_env() -> dict[str, str]:
    """Return how a gateway reaches the cluster; its sandboxes may list networks of loopback."""
    kubernetes = {"BLOCKED_NETWORKS": json.dumps(["10.0.0.0/8", "169.254.0.0/16"])}
    if KUBECONFIG:
        kubernetes |= {"KUBECONFIG": KUBECONFIG, "IMAGE": IMAGE}
    else:
        kubernetes |= {"API_URL": service_url("kubernetes_pods_service"), "TOKEN": TOKEN}
    return {f"DOVECOTE_SANDBOX__KUBERNETES__{name}": value for name, value in kubernetes.items()}


@asynccontextmanager
async def open_gateway(
    provider: str, room: GroupRoom, model: OpenAIServer, hosts: CodeHosts, data: Path
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose agent may use the hosts by credentials, in a sandbox of its own."""
    port = reserve_port()
    env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
    env |= {"OPENAI_API_KEY": "loopback", "DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    env |= {**hosts.env, **provider_env(provider), **channel_env(room.kind, room.settings())}
    process = GatewayProcess(data, env=env, port=port, wrapper=hosts.wrapper)
    try:
        await process.start()
        config = {
            "provider": provider,
            "permissionMode": "bypass",
            "runtimes": ["bash", "python", "git"],
            "network": {"mode": "restricted", "allowCidrs": [hosts.cidr]},
        }
        await call(process, "PATCH", "/accounts/me/sandboxes/default", json={"config": config})
        for credential in hosts.credentials("default"):
            await call(process, "POST", "/accounts/me/credentials", json=credential)
        yield process
    finally:
        await process.stop()


def containers_of(data: Path) -> list[Mapping[str, object]]:
    """Return what the engine reports of the containers that mount something of a gateway."""
    engine = docker_engine.shared_engine()
    listed = json.loads(engine.call("GET", "/containers/json?all=1"))
    mine = [one["Id"] for one in listed if any(str(data) in mount["Source"] for mount in one["Mounts"])]
    return [json.loads(engine.call("GET", f"/containers/{one}/json")) for one in mine]


@pytest.mark.parametrize(
    "provider", ["host", "docker", pytest.param("kubernetes", marks=pytest.mark.exhaustive)]
)
async def test_a_chat_gets_its_pull_request(provider: str, tmp_path: Path) -> None:
    """Clone, job through kill -9, commit of the asker, and a link in the thread; no secret leaks."""
    data = tmp_path / "data"
    async with (
        code_hosts(tmp_path / "hosts") as hosts,
        open_group_room("telegram") as room,
        OpenAIServer(PullRequestModel(f"https://{GIT_HOST}", f"https://{API_HOST}")) as model,
        open_gateway(provider, room, model, hosts, data) as process,
    ):
        hosts.git.create_tree(f"{REPOSITORY}.git", FILES)
        await room.say(ADA, ORDER, to_bot=True)
        await room.wait_for(BEGUN)
        await wait_until_settled(process)
        await process.kill()
        await process.start()

        await room.say(ADA, SEARCH_ORDER, to_bot=True)
        during = await room.wait_for(SEARCHED)
        await room.say(ADA, GO_ORDER, to_bot=True)
        opened = await room.wait_for(OPENED)
        await room.say(ADA, f"{SEARCH_ORDER} again", to_bot=True)
        await room.wait_until(lambda: sum(SEARCHED in one.text for one in room.messages()) == 2, seconds=60)
        await wait_until_settled(process)
        known = str(containers_of(data)) if provider == "docker" else ""
        (sandbox,) = (await call(process, "GET", "/sandboxes"))["items"]
        if provider == "kubernetes":  # the tests do not end the cluster
            await call(process, "DELETE", f"/sandboxes/{sandbox['id']}")

    assert sandbox["provider"] == provider
    assert opened.text.endswith(f"{WEB}/{REPOSITORY}/pull/1")
    said = room.messages()
    assert [sum(words in one.text for one in said) for words in (BEGUN, OPENED)] == [1, 1]
    assert {one.thread for one in said} == {room.thread}
    assert all(NOTHING_FOUND in one.text for one in said if SEARCHED in one.text), during.text

    (pull,) = hosts.api.pulls
    assert (pull["head"]["ref"], pull["base"]["ref"]) == (BRANCH, "main")
    assert hosts.git.authors(f"{REPOSITORY}.git", BRANCH)[0] == "Ada"
    assert hosts.git.show(f"{REPOSITORY}.git", BRANCH, "adding.py") == MENDED
    assert "FAILED (failures=1)" in str(model.bodies), "the test fails before the change"

    reported = [str(model.bodies), str(said), "\n".join(process.log), known]
    for secret in hosts.secrets:
        assert not [one for one in reported if secret in one]
        assert files_containing(data, secret) == []
