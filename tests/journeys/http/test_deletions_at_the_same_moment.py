"""What is deleted while another request uses it: an answer that says so, and no internal error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api_server import ApiServer, open_api_server

LOGIN = {"host": "git.example.org", "kind": "basic", "secret": "ada:canary", "agents": ["default"]}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running API."""
    async with open_api_server(tmp_path) as running:
        yield running


async def test_a_credential_is_deleted(api: ApiServer) -> None:
    """By its name or its id; a version that it does not have is refused."""
    for path in ("name", "id"):
        made = await api.mine.call("POST", "/accounts/me/credentials", {"name": "git", **LOGIN})
        assert made.status == 201
        credential = f"/accounts/me/credentials/{made.body[path]}"
        assert (await api.other.call("DELETE", credential)).status == 404
        assert (await api.mine.call("DELETE", credential, If_Match='"other"')).status == 412
        assert (await api.mine.call("DELETE", credential)).status == 204
        assert (await api.mine.call("DELETE", credential)).status == 404
    assert (await api.mine.call("GET", "/accounts/me/credentials")).body["items"] == []


async def test_a_file_of_a_skill_is_deleted(api: ApiServer) -> None:
    """The other files of the skill stay."""
    config = {"description": "How to deploy"}
    assert (
        await api.mine.call("POST", "/accounts/me/skills", {"name": "deploy", "config": config})
    ).status == 201
    files, headers = "/accounts/me/skills/deploy/files", {"Authorization": f"Bearer {api.mine.key}"}
    for name in ("SKILL.md", "notes.md"):
        async with api.mine.session.put(f"{api.url}{files}/{name}", data=b"text", headers=headers) as answer:
            assert answer.status == 204
    assert (await api.other.call("DELETE", f"{files}/notes.md")).status == 404
    assert (await api.mine.call("DELETE", f"{files}/notes.md")).status == 204
    assert (await api.mine.call("DELETE", f"{files}/notes.md")).status == 404
    assert [one["path"] for one in (await api.mine.call("GET", files)).body["items"]] == ["SKILL.md"]


async def test_an_agent_is_deleted_while_a_file_of_it_is_uploaded(api: ApiServer) -> None:
    """The upload ends with 404, and the file is not stored."""
    agent = await api.mine.call("POST", "/accounts/me/agents", {"name": "a", "config": {}})
    path = f"/accounts/me/agents/{agent.body['id']}"

    async def content() -> AsyncIterator[bytes]:
        yield b"Be "
        assert (await api.mine.call("DELETE", path)).status == 204
        yield b"brief."

    headers = {"Authorization": f"Bearer {api.mine.key}"}
    url = f"{api.url}{path}/files/AGENTS.md"
    async with api.mine.session.put(url, data=content(), headers=headers) as answer:
        assert answer.status == 404
