"""What runs without the keys of a database, or with others than its gateway, says so and makes no key."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from commands import run_to_end
from gateway_process import gateway

KEYS = {"DOVECOTE_SECRET_KEYS": "given-" + "g" * 40}


@pytest.mark.parametrize(
    ("words", "expected"), [(("serve", "--port", "0"), 2), (("apply",), 1), (("secrets", "reencrypt"), 1)]
)
async def test_no_key_is_made_beside_a_database_in_use(
    tmp_path: Path, words: tuple[str, ...], expected: int
) -> None:
    """The command fails, and names the setting and the file, which is not there afterwards."""
    data = tmp_path / "data"
    async with gateway(data, env=KEYS):
        pass
    code, _, errors = await run_to_end(*words, "--data", str(data), cwd=tmp_path)
    assert code == expected, errors
    assert "DOVECOTE_SECRET_KEYS" in errors
    assert f"there is no {data / 'secret.key'}" in errors
    assert not (data / "secret.key").exists()


async def test_the_rotation_names_a_gateway_with_its_own_nats_server(tmp_path: Path) -> None:
    """It would encrypt the next secret with the old key; after its restart, or without it, none is named."""
    old, new = "old-" + "o" * 40, "new-" + "n" * 40
    renewed = {"DOVECOTE_SECRET_KEYS": f"{new},{old}"}
    words = ("secrets", "reencrypt", "--data", str(tmp_path / "data"))
    async with gateway(tmp_path / "data", env={"DOVECOTE_SECRET_KEYS": f"{old},{new}"}) as process:
        code, _, errors = await run_to_end(*words, cwd=tmp_path, **renewed)
        assert (code, f"{socket.gethostname()}/{process.pid}" in errors) == (1, True), errors
    async with gateway(tmp_path / "data", env=renewed):
        code, _, errors = await run_to_end(*words, cwd=tmp_path, **renewed)
        assert (code, errors) == (0, "")
    code, _, errors = await run_to_end(*words, cwd=tmp_path, **renewed)
    assert (code, errors) == (0, "")
