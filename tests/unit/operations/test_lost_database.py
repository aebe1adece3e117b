"""A start without the SQLite file that a data directory was used with begins no new installation."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.config.settings import Settings
from gateway.infra.backing_services import open_backing_services
from gateway.infra.data_dir import COPIED_NAME
from gateway.infra.preflight import DatabaseLost, find_lost_database

_SERVER = SecretStr("postgresql://db.example/dovecote")
LOG = "nats/store/jetstream/$G/streams/EVENTS"


def used(directory: Path, *names: str) -> Settings:
    """Return the settings of a data directory in which these directories have contents."""
    directory.chmod(0o700)
    for name in names:
        (directory / name / "some").mkdir(parents=True)
    return Settings(data_dir=directory)


@pytest.mark.parametrize("size", [0, None], ids=["empty", "missing"])
async def test_a_lost_database_ends_the_start(tmp_path: Path, size: int | None) -> None:
    """The error names the file, what it belongs to, and the remedy; nothing was made."""
    settings = used(tmp_path, LOG, "files")
    if size is not None:
        (tmp_path / "dovecote.db").write_bytes(b"")
    with pytest.raises(DatabaseLost) as caught:
        async with open_backing_services(settings):
            pass
    text = str(caught.value)
    assert f"{tmp_path / 'dovecote.db'} is {'missing' if size is None else 'empty'}" in text
    assert f"{tmp_path / 'nats'} and {tmp_path / 'files'}" in text
    assert "copy dovecote.db of a backup" in text
    assert not (tmp_path / "secret.key").exists()
    assert not (tmp_path / "nats" / "server.log").exists()


def test_a_copied_database_is_named(tmp_path: Path) -> None:
    """After the rows went to PostgreSQL, a start without its address says so."""
    settings = used(tmp_path, LOG)
    (tmp_path / COPIED_NAME).write_bytes(b"rows")
    assert "set database_url" in str(find_lost_database(settings))


def test_a_database_that_is_there_or_new_is_not_lost(tmp_path: Path) -> None:
    """Neither is one that a start made which was killed before it had rows, nor a server's."""
    assert find_lost_database(used(tmp_path, "sandboxes", "logs")) is None
    (tmp_path / "files" / "lost+found").mkdir(parents=True)
    (tmp_path / "dovecote.db").write_bytes(b"")
    settings = Settings(data_dir=tmp_path)
    assert find_lost_database(settings) is None
    (tmp_path / LOG).mkdir(parents=True)
    (tmp_path / LOG / "meta.inf").write_bytes(b"x")
    assert find_lost_database(settings) is not None
    (tmp_path / "dovecote.db").write_bytes(b"rows")
    assert find_lost_database(settings) is None
    (tmp_path / "dovecote.db").unlink()
    assert find_lost_database(settings.model_copy(update={"database_url": _SERVER})) is None
