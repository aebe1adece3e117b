"""Commands on the database of a data directory that their user cannot write say so, with the remedy."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gateway.config.load import environment_without_ours
from migrated import migrated_data_directory

UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Begins a command in which permissions of files count, as for a user that is not root."""

COMMANDS = (("apply",), ("secrets", "reencrypt"))


async def run_in(directory: Path, *words: str) -> tuple[int | None, str]:
    """Run a command in a directory; return its exit code and what it wrote."""
    command = await asyncio.create_subprocess_exec(
        *words, cwd=directory, env=environment_without_ours(), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await command.communicate()
    return command.returncode, said.decode()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_a_directory_without_write_permission_is_named(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """SQLite puts files beside the database; the error of the library names neither place nor remedy."""
    data = tmp_path / "data"
    await migrated_data_directory(data)
    data.chmod(0o500)
    program = (*UNPRIVILEGED, sys.executable, "-m", "gateway")
    code, said = await run_in(tmp_path, *program, *command, "--data", str(data))
    data.chmod(0o700)
    assert code == 1, said
    assert f"this user may not read and write {data}. As its owner or as root: `chown " in said
    assert f"`chmod u+rwX {data}`" in said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_a_read_only_file_system_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    """No change of permissions would help there."""
    data = tmp_path / "data"
    await migrated_data_directory(data)
    mounted = ("bwrap", "--dev-bind", "/", "/", "--ro-bind", str(data), str(data))
    program = (*mounted, sys.executable, "-m", "gateway")
    code, said = await run_in(tmp_path, *program, *command, "--data", str(data))
    assert code == 1, said
    assert f"the file system of {data} is read-only" in said


async def test_an_agent_whose_model_cannot_be_used_is_not_applied(tmp_path: Path) -> None:
    """The next start would refuse the file; the line has the field, the value and the remedy."""
    data, file = tmp_path / "data", tmp_path / "dovecote.toml"
    await migrated_data_directory(data)
    file.write_text('[agents.coder]\nmodel = "anthropic:claude"\n')
    program = (sys.executable, "-m", "gateway", "apply", "--data", str(data))
    refused = await run_in(tmp_path, *program)
    assert refused[0] == 2, refused[1]
    assert "agents.coder.model" in refused[1]
    assert "ANTHROPIC_API_KEY" in refused[1]
    file.write_text('[agents.coder]\nmodel = "builtin:shell"\n')
    assert "has not been started on this database yet" in (await run_in(tmp_path, *program))[1]
