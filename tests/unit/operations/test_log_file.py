"""The log in the data directory: bounded, without secrets, and read as it grows."""

from __future__ import annotations

import json
import logging
from pathlib import Path

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


def test_nothing_is_written_without_a_limit(tmp_path: Path) -> None:
    """0 means no log in the data directory."""
    with logged_to_file(tmp_path, limit=0):
        logging.getLogger("part").error("lost")
    assert not log_path(tmp_path).parent.exists()


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
    assert list(reader.older_lines()) == ["one\n", "two\n", "three\n"]
    reader.close()
