"""The log in the data directory: bounded, without secrets, and read as it grows."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gateway.cli.machine.logs import LogReader
from gateway.observability.log_file import log_path, logged_to_file

SECRET = "canary-canary"


def test_the_log_is_bounded_and_keeps_no_secret(tmp_path: Path) -> None:
    """Old files are deleted; a known secret and a key are not written."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.setLevel("INFO")
    with logged_to_file(tmp_path, limit=8000, secrets=[SECRET]):
        for number in range(400):
            logging.getLogger("part").info("line %s of %s", number, SECRET)
    root.setLevel(level)
    assert root.handlers == before
    files = sorted(log_path(tmp_path).parent.iterdir())
    assert 2 <= len(files) <= 4
    assert sum(file.stat().st_size for file in files) <= 8000
    kept = [json.loads(line) for line in log_path(tmp_path).read_text().splitlines()]
    assert kept[-1]["event"] == "line 399 of ***"
    assert (kept[-1]["level"], kept[-1]["logger"]) == ("info", "part")


def test_a_disk_without_space_is_no_error_at_the_end(tmp_path: Path) -> None:
    """A gateway whose log cannot be written is stopped like any other."""
    log_path(tmp_path).parent.mkdir()
    log_path(tmp_path).symlink_to("/dev/full")
    with logged_to_file(tmp_path, limit=8000):
        logging.getLogger("part").warning("a line")


def test_nothing_is_written_without_a_limit(tmp_path: Path) -> None:
    """0 means no log in the data directory."""
    with logged_to_file(tmp_path, limit=0):
        logging.getLogger("part").error("lost")
    assert not log_path(tmp_path).parent.exists()


def logrotate(file: Path, rule: str) -> None:
    """Rotate a log once with Debian's logrotate."""
    rules = file.parent.parent / "logrotate.conf"
    rules.write_text(f'"{file}" {{\nrotate 3\n{rule}\n}}\n')
    rules.chmod(0o600)
    state = str(rules.with_name("logrotate.state"))
    subprocess.run(["/usr/sbin/logrotate", "--force", "--state", state, str(rules)], check=True)


def move_directory(file: Path) -> None:
    """Move the log's directory away, as an operator does who wants to keep it."""
    file.parent.rename(file.parent.with_name("kept"))


def delete_directory(file: Path) -> None:
    """Delete the log's directory, as an operator does who needs space."""
    shutil.rmtree(file.parent)


ROTATIONS: dict[str, Callable[[Path], None]] = {
    "create": partial(logrotate, rule="create"),
    "nocreate": partial(logrotate, rule="nocreate"),
    "copytruncate": partial(logrotate, rule="copytruncate"),
    "moved": move_directory,
    "deleted": delete_directory,
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_the_log_goes_on_after_a_rotation(tmp_path: Path, name: str) -> None:
    """The lines after it are in a file of the log's name, and `dovecote logs --follow` goes on to them."""
    if name not in {"moved", "deleted"} and not Path("/usr/sbin/logrotate").exists():
        pytest.skip("needs Debian's logrotate")
    logger, file = logging.getLogger("part"), log_path(tmp_path)
    reader = LogReader(file)
    with logged_to_file(tmp_path, limit=80_000):
        logger.warning("one, which is the longer line")
        assert len(list(reader.new_lines())) == 1
        ROTATIONS[name](file)
        assert list(reader.new_lines()) == []
        logger.warning("two")
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["two"]
    assert [json.loads(line)["event"] for line in reader.new_lines()] == ["two"]
    reader.close()


def test_a_reader_goes_on_in_the_next_file(tmp_path: Path) -> None:
    """Lines are yielded when they are complete, once, in their order, also when the file is replaced."""
    file = tmp_path / "gateway.log"
    reader = LogReader(file)
    assert list(reader.new_lines()) == []
    file.write_text("one\ntw")
    assert list(reader.new_lines()) == ["one\n"]
    with file.open("a") as opened:
        opened.write("o\nthree\n")
    file.rename(tmp_path / "gateway.log.1")
    file.write_text("four\n")
    assert list(reader.new_lines()) == ["two\n", "three\n", "four\n"]
    reader.close()
    assert list(reader.new_lines()) == ["one\n", "two\n", "three\n", "four\n"]
    reader.close()


def test_a_reader_misses_no_file_of_many_rotations(tmp_path: Path) -> None:
    """A pager that is paused stops the reader, while the gateway writes and renames several files."""
    file = log_path(tmp_path)
    file.parent.mkdir()
    file.write_text("1\n")
    os.utime(file, (1, 1))
    reader = LogReader(file)
    assert list(reader.new_lines()) == ["1\n"]
    for line in (2, 3, 4):
        for number in (2, 1):
            if file.with_name(f"{file.name}.{number}").exists():
                file.with_name(f"{file.name}.{number}").rename(file.with_name(f"{file.name}.{number + 1}"))
        file.rename(file.with_name(f"{file.name}.1"))
        file.write_text(f"{line}\n")
        os.utime(file, (line, line))
    assert list(reader.new_lines()) == ["2\n", "3\n", "4\n"]
    file.rename(file.with_name("moved.log"))  # as logrotate does
    file.write_text("5\n")
    assert list(reader.new_lines()) == ["5\n"]
    reader.close()
