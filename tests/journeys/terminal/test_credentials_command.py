"""`dovecote credentials`: the secret is read from standard input and never from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from command_line import run_command_line
from fake_gateway import FakeGateway, fake_gateway

PATH = "/accounts/me/credentials"


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    """Return a simulated gateway, and work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    with fake_gateway() as stand_in:
        yield stand_in


def run(gateway: FakeGateway, *words: str, typed: str = "") -> Result:
    """Run a command against the gateway."""
    return run_command_line(*words, "--url", gateway.url, "--key", "dvk_x", typed=typed)


@pytest.mark.parametrize(
    ("typed", "secret"),
    [("ada:canary\n", "ada:canary"), ('{"username": "ada"}\n', {"username": "ada"})],
)
def test_a_secret_is_a_text_or_an_object(gateway: FakeGateway, typed: str, secret: object) -> None:
    """What is typed becomes the secret of the request."""
    gateway.responses["POST", PATH] = (201, {"id": "crd_1"})
    words = [
        "credentials",
        "add",
        "git",
        "--host",
        "a.org",
        "--kind",
        "basic",
        "--agent",
        "x",
        "--agent",
        "y",
    ]
    assert run(gateway, *words, typed=typed).exit_code == 0
    ((_method, _path, body, _headers),) = gateway.requests
    assert body == {"name": "git", "host": "a.org", "kind": "basic", "agents": ["x", "y"], "secret": secret}
    assert run(gateway, *words, typed='{"username"').exit_code == 2


def test_credentials_are_listed_and_deleted(gateway: FakeGateway) -> None:
    """The list shows no secret; a deletion names the credential."""
    shown = {"id": "crd_1", "name": "git", "host": "a.org", "kind": "basic", "agents": ["x", "y"]}
    gateway.lists[PATH] = [shown]
    assert "x, y" in run(gateway, "credentials", "list").stdout
    assert json.loads(run(gateway, "credentials", "list", "--json").stdout) == [shown]
    gateway.responses["DELETE", f"{PATH}/crd_1"] = (200, {})
    assert run(gateway, "credentials", "rm", "crd_1").stdout == "crd_1 deleted\n"
