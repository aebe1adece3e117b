"""The data directory is closed to other users, and a directory with other contents is not changed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.infra.data_dir import DataDirExposed, DataDirLock, DataDirUnusable, prepare_data_dir


def mode(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_directory_is_closed(tmp_path: Path) -> None:
    """Only its owner can read it."""
    prepare_data_dir(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o700


def test_a_directory_of_a_gateway_is_closed(tmp_path: Path) -> None:
    """Of an earlier version, or an empty one such as a new volume."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    prepare_data_dir(data)
    assert mode(data) == 0o700
    data.chmod(0o755)
    with DataDirLock(data):
        prepare_data_dir(data)
    assert mode(data) == 0o700


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    """The error names the setting, the path, the reason and what to do."""
    (tmp_path / "file").touch()
    for path, reason in (("file", "is not a directory"), ("file/data", "cannot be created: Not a directory")):
        with pytest.raises(DataDirUnusable) as caught:
            prepare_data_dir(tmp_path / path)
        said = f"data_dir = {tmp_path / path} (--data, DOVECOTE_DATA_DIR): {reason}. Choose a path"
        assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("key", "file"), ("secret.key", "file"), ("dovecote.db", "file"), ("logs", "directory")],
)
def test_an_entry_of_the_wrong_kind_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """The error names the path, the kind that it must have and the remedy; nothing is changed."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    make = (data / name).mkdir if kind == "file" else (data / name).touch
    make()
    with pytest.raises(DataDirUnusable, match=f"^{data / name} is a .* but must be a {kind}. Move it away"):
        prepare_data_dir(data)
    assert [path.name for path in data.iterdir()] == [name]


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    """The error names the directory, its mode and the command that helps."""
    (tmp_path / "notes.txt").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(DataDirExposed, match=rf"{tmp_path} \(mode 0755\): run `chmod 700 {tmp_path}`"):
        prepare_data_dir(tmp_path)
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    prepare_data_dir(tmp_path)
