"""Files of a sandbox that can only run scripts: the real shell program, by bash and by dash."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import ProviderUnreachable, SandboxGone, UnsafePath
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import ExecRequest, ExecResult

EVERY_BYTE = bytes(range(256)) * 64
HOSTILE = ["a b", "-rf", "$(touch x)", "new\nline", "quo'te\"", "*", "\\", "ünï", "trailing ", "tab\t", "\n"]


class TruncatingShell:
    """Runs scripts by one shell; `cut` drops the end of what is written."""

    def __init__(self, program: str, *, cut: int = 0) -> None:
        self.program = program
        self.cut = cut

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(self.program, "-c", command.script),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={"PATH": "/usr/bin:/bin"},
        )
        out, err = await process.communicate(command.stdin[: len(command.stdin) - self.cut])
        return ExecResult(exit_code=process.returncode or 0, stdout=out[: command.output_limit], stderr=err)


@pytest.fixture(params=["bash", "dash"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> ShellFiles:
    """Return the files of a workspace with a strange name."""
    workspace = tmp_path / "work 'space'"
    workspace.mkdir()
    return ShellFiles(run=TruncatingShell(f"/bin/{request.param}").run, root=str(workspace))


async def test_bytes_go_round(files: ShellFiles) -> None:
    """Every byte is written and read, parents made, and reading is bounded."""
    await files.write("deep/down/file", EVERY_BYTE)
    assert await files.read("deep/down/file", limit=1 << 20) == EVERY_BYTE
    assert await files.read(f"{files.root}/deep/down/file", limit=10) == EVERY_BYTE[:10]
    await files.write("deep/down/file", b"")
    assert await files.read("deep/down/file", limit=10) == b""


async def test_hostile_names_are_names(files: ShellFiles) -> None:
    """No name is anything but a name, in any operation."""
    for name in HOSTILE:
        await files.write(f"in/{name}", name.encode())
    listed = await files.list("in")
    assert [(one.name, one.size) for one in listed] == sorted((name, len(name.encode())) for name in HOSTILE)
    for name in HOSTILE:
        assert await files.read(f"in/{name}", limit=100) == name.encode()
        assert (await files.stat(f"in/{name}")).name == name
        await files.rename(f"in/{name}", f"out/{name}")
        await files.copy(f"out/{name}", f"in/{name}")
        await files.remove(f"out/{name}")
    assert os.listdir(f"{files.root}/out") == []  # noqa: PTH208 - names, as they are
    assert len(await files.list("in")) == len(HOSTILE)


async def test_kinds_of_files_are_returned(files: ShellFiles) -> None:
    """Files, directories, links and the rest are distinguished; hidden names are listed."""
    root = Path(files.root)
    await files.write(".hidden", b"four")
    await files.mkdir("a/b")
    await files.mkdir("a/b")
    (root / "link").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    reported = {one.name: one.kind for one in await files.list(".")}
    assert reported == {".hidden": "file", "a": "directory", "link": "link", "pipe": "other"}
    assert (await files.stat("a")).kind == "directory"
    assert abs((await files.stat(".hidden")).modified - (root / ".hidden").stat().st_mtime) < 2
    assert await files.list("a/b") == []


async def test_links_do_not_lead_out(files: ShellFiles) -> None:
    """No link leads reading or writing outside; links inside work."""
    root = Path(files.root)
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    for name, target in [("leak", "../outside/secret"), ("out", "../outside"), ("up", ".."), ("abs", "/etc")]:
        (root / name).symlink_to(target)
    (root / "ring").symlink_to("ring")
    (root / "new").symlink_to("../outside/new")
    for path in ("leak", "out/secret", "up/outside/secret", "abs/hostname", "ring", "../x", "/etc/x", "n\0"):
        with pytest.raises(UnsafePath):
            await files.read(path, limit=10)
        with pytest.raises(UnsafePath):
            await files.write(path, b"x")
    with pytest.raises(UnsafePath):
        await files.write("new", b"x")
    for path in ("out/secret", "up/outside"):
        with pytest.raises(UnsafePath):
            await files.remove(path)
        with pytest.raises(UnsafePath):
            await files.copy(path, "stolen")
    assert {file.name for file in outside.iterdir()} == {"secret"}
    await files.remove("out")
    assert (outside / "secret").read_text() == "secret"
    (root / "inside").symlink_to("real/../real/file")
    await files.write("real/file", b"old")
    await files.write("inside", b"new")
    assert await files.read("real/file", limit=10) == b"new"
    assert (root / "inside").is_symlink()


async def test_a_missing_file_is_reported(files: ShellFiles) -> None:
    """Errors are those of ordinary files."""
    await files.write("file", b"x")
    await files.mkdir("directory")
    for path in ("absent", "absent/below"):
        with pytest.raises(FileNotFoundError):
            await files.read(path, limit=1)
        with pytest.raises(FileNotFoundError):
            await files.remove(path)
    with pytest.raises(NotADirectoryError):
        await files.read("file/below", limit=1)
    for broken in (files.read("directory", limit=1), files.write("directory", b"")):
        with pytest.raises(IsADirectoryError):
            await broken
    with pytest.raises(FileExistsError):
        await files.copy("directory", "file")
    with pytest.raises(UnsafePath):
        await files.remove(".")


def test_a_replaced_file_keeps_its_mode(files: ShellFiles) -> None:
    """Writing keeps a file's permissions, never a set-id bit, and leaves nothing beside it."""
    program = Path(files.root, "program")
    program.write_text("old")
    program.chmod(0o4755)
    asyncio.run(files.write("program", b"new"))
    assert program.stat().st_mode & 0o7777 == 0o755
    assert os.listdir(files.root) == ["program"]  # noqa: PTH208 - names, as they are


def test_content_that_is_cut_short_changes_nothing(tmp_path: Path) -> None:
    """A connection that breaks while a file is sent leaves the old one."""
    (tmp_path / "file").write_text("old")
    with pytest.raises(ProviderUnreachable):
        asyncio.run(
            ShellFiles(run=TruncatingShell("/bin/bash", cut=3).run, root=str(tmp_path)).write(
                "file", b"newer"
            )
        )
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "old")]


async def test_a_workspace_that_is_gone(tmp_path: Path) -> None:
    """Without the workspace's directory the sandbox is gone."""
    with pytest.raises(SandboxGone):
        await ShellFiles(run=TruncatingShell("/bin/dash").run, root=str(tmp_path / "no")).read("x", limit=1)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.text(
        st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=40
    )
)
async def test_any_name_goes_round(tmp_path: Path, name: str) -> None:
    """What is written under any name is read under it."""
    files = ShellFiles(run=TruncatingShell("/bin/dash").run, root=str(tmp_path))
    if name in {".", ".."}:
        return
    await files.write(name, b"content")
    assert await files.read(name, limit=100) == b"content"
