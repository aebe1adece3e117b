"""What runs without the keys that encrypted a database's secrets refuses, and makes no key of its own."""

from __future__ import annotations

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
