"""A damaged SQLite file ends the start with the file's name and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway_process import GatewayProcess
from migrated import migrated_sqlite

PAGE = 4096


@pytest.mark.parametrize("keeps_header", [True, False])
async def test_a_damaged_file_is_named_with_the_way_back(tmp_path: Path, *, keeps_header: bool) -> None:
    """Neither a foreign file nor damaged pages end in a traceback, and the file is left alone."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    file = data / "dovecote.db"
    await migrated_sqlite(file)
    content = file.read_bytes()
    kept = content[:PAGE] if keeps_header else b""
    damaged = kept + b"\xa5" * (len(content) - len(kept))
    file.write_bytes(damaged)
    process = GatewayProcess(data)
    await process.start(wait=False)
    assert await process.wait_for_exit(60) == 2
    said = "\n".join(process.log)
    assert f"the SQLite file {file} is damaged" in said
    assert "dovecote backup" in said
    assert "Traceback" not in said
    assert file.read_bytes() == damaged
