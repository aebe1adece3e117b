"""What the file tools promise a model, in the sandboxes of every installed provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.agents.port import ToolResult
from gateway.environments.environment import Environment
from gateway.files.attachments import MAX_IMAGE_BYTES
from gateway.tools.builtin.bash import bash
from gateway.tools.files.edit import edit
from gateway.tools.files.file_operations import FILE_OPERATIONS, copy, mkdir, remove, rename, stat
from gateway.tools.files.glob import glob
from gateway.tools.files.grep import grep
from gateway.tools.files.list_files import list_files
from gateway.tools.files.read import read
from gateway.tools.files.view_image import view_image
from gateway.tools.files.write import write
from gateway.tools.tool import InvalidArguments, Tool, ToolContext
from repetitions import in_gate
from sandbox.config import SandboxConfig
from sandbox.labels import Owner, Scope
from sandbox.model import ExecRequest, SandboxSpec
from sandbox.port import Sandbox
from sandbox.testing.names import HOSTILE_NAMES
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs


@dataclass
class SingleSandboxFiles:
    """An environment resolver with one sandbox."""

    only_sandbox: Sandbox

    async def sandbox(self, _bench: Environment) -> Sandbox:
        """Return it."""
        return self.only_sandbox

    async def files(self, _bench: Environment) -> Sandbox:
        """Return it."""
        return self.only_sandbox


@dataclass
class ToolHarness:
    """A sandbox and the tools that use it."""

    context: ToolContext
    sandbox: Sandbox

    async def run_tool(self, tool: Tool, **args: Any) -> ToolResult:
        """Carry a call out."""
        return await tool.run(self.context, args, "key")


def _make_harness(sandbox: Sandbox, spec: SandboxSpec) -> ToolHarness:
    owner = Owner(
        account="acc_1",
        scope=Scope.WORKSPACE,
        conversation="cnv_1",
        agent="agt_1",
        person="",
        workspace="wsp_1",
    )
    environment = Environment(config=SandboxConfig(), spec=spec, owner=owner)
    whatever = cast("Any", None)
    context = ToolContext(
        turn=whatever,
        environment=environment,
        environment_resolver=cast("Any", SingleSandboxFiles(sandbox)),
        jobs=whatever,
        files=whatever,
    )
    return ToolHarness(context, sandbox)


@pytest.fixture(params=in_gate(all_rigs(), {"host-control_groups", "e2b-loopback"}))
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ToolHarness]:
    """Return the tools in a sandbox of each provider."""
    rig: ProviderRig = all_rigs()[request.param](tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        yield _make_harness(sandbox, rig.spec())
        await provider.destroy(sandbox.id)


async def test_a_file_is_written_read_and_edited(harness: ToolHarness) -> None:
    """Parents are created, lines are numbered, one exact piece is replaced, and bytes are unchanged."""
    text = "first\n\ttabbed \u00fcml\u00e4ut\nlast"
    assert (await harness.run_tool(write, path="a/b c/file.txt", content=text)).ok
    assert (await harness.run_tool(read, path="a/b c/file.txt")).content == (
        "     1\tfirst\n     2\t\ttabbed \u00fcml\u00e4ut\n     3\tlast"
    )
    changed = await harness.run_tool(edit, path="a/b c/file.txt", old_text="first\n", new_text="1st\n")
    assert changed.ok, changed.content
    assert await harness.sandbox.read("a/b c/file.txt", limit=1000) == text.replace("first", "1st").encode()


async def test_a_command_answers_with_text(harness: ToolHarness) -> None:
    """Output and errors are in the order of writing; an exit code and a missing program are named."""
    mixed = await harness.run_tool(bash, command="for n in 1 2 3; do echo out $n; echo err $n >&2; done")
    assert mixed.content == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3"
    assert (await harness.run_tool(bash, command="true")).content == "[no output]"
    failed = await harness.run_tool(bash, command="# a comment\necho said; no-such-program; exit 3")
    assert not failed.ok
    assert failed.content.splitlines()[0] == "said"
    assert "no-such-program: command not found" in failed.content
    assert failed.content.endswith("[exit code 3]")
    assert "syntax error" in (await harness.run_tool(bash, command="if")).content


async def test_a_part_of_a_long_file_is_read(harness: ToolHarness) -> None:
    """Offset and limit choose lines, and omitted lines are counted."""
    await harness.run_tool(write, path="long", content="\n".join(str(place) for place in range(1, 5001)))
    part = await harness.run_tool(read, path="long", offset=10, limit=2)
    assert part.content == "    10\t10\n    11\t11\n[4989 more lines; the file has 5000]"
    assert not (await harness.run_tool(read, path="long", offset=6000)).ok
    assert len((await harness.run_tool(read, path="long")).content.splitlines()) == 2001


async def test_an_edit_needs_one_match(harness: ToolHarness) -> None:
    """No match and several matches are refused with the count; replace_all replaces all of them."""
    await harness.run_tool(write, path="f", content="x = 1\nx = 1\n")
    several = await harness.run_tool(edit, path="f", old_text="x = 1", new_text="x = 2")
    assert not several.ok
    assert "2 times" in several.content
    assert "not in it" in (await harness.run_tool(edit, path="f", old_text="y", new_text="z")).content
    assert (await harness.run_tool(edit, path="f", old_text="x = 1", new_text="x = 2", replace_all=True)).ok
    assert await harness.sandbox.read("f", limit=100) == b"x = 2\nx = 2\n"


async def test_what_cannot_be_is_said_plainly(harness: ToolHarness) -> None:
    """A missing file, a directory, a way out, a binary and a wrong argument: words, and never a crash."""
    await harness.sandbox.run(ExecRequest(script="mkdir d; printf 'a\\0b' > binary; ln -s /etc/passwd leak"))
    assert (await harness.run_tool(read, path="none")).content == "there is no file none"
    assert (await harness.run_tool(read, path="d")).content == "d is a directory"
    for path in ("../up", "/etc/passwd", "leak"):
        result = await harness.run_tool(read, path=path)
        assert not result.ok
        assert "root:" not in result.content
    assert "not text" in (await harness.run_tool(read, path="binary")).content
    for tool, args in (
        (read, {"path": 3}),
        (read, {"path": "f", "limit": 0}),
        (write, {"path": "f"}),
        (grep, {"pattern": "a\nb"}),
        (glob, {"pattern": "../*"}),
        (glob, {"pattern": "/etc/*"}),
    ):
        with pytest.raises(InvalidArguments):
            await harness.run_tool(tool, **args)


async def test_files_are_found_by_name(harness: ToolHarness) -> None:
    """`**` enters directories, hidden ones too; the newest is first; hostile names are only names."""
    await harness.sandbox.run(
        ExecRequest(
            script="mkdir -p a/.b; touch -d '2020-01-01' a/old.py; touch -d '2021-01-01' a/.b/new.py; "
            "touch 'a/$(touch pwned).py' 'a/two words.py' -d '2019-01-01'; touch a/other.txt; ln -s / root"
        )
    )
    found = await harness.run_tool(glob, pattern="**/*.py")
    assert found.content.splitlines() == ["a/.b/new.py", "a/old.py", "a/$(touch pwned).py", "a/two words.py"]
    assert (await harness.run_tool(glob, pattern="*.txt", path="a")).content == "a/other.txt"
    assert (await harness.run_tool(glob, pattern="$(touch pwned)")).content == "no file matches"
    assert not (await harness.run_tool(glob, pattern="*", path="nowhere")).ok
    assert (await harness.run_tool(glob, pattern="pwned")).content == "no file matches"


async def test_a_file_of_any_name_is_one_line(harness: ToolHarness) -> None:
    """A name with line breaks is found and listed as one file, in JSON, which `read` then opens."""
    for name in HOSTILE_NAMES:
        await harness.sandbox.write(f"d/{name}", name.encode())
    found = await harness.run_tool(glob, pattern="d/*")
    assert sorted(found.detail["files"]) == sorted(f"d/{name}" for name in HOSTILE_NAMES)
    listed = await harness.run_tool(list_files, path="d")
    assert sorted(listed.detail["names"]) == sorted(HOSTILE_NAMES)
    for answer in (found, listed):
        lines = answer.content.splitlines()
        assert len(lines) == len(HOSTILE_NAMES)
        assert any(line.partition("  ")[0].endswith('two\\nlines"') for line in lines)
    for name in HOSTILE_NAMES:
        assert name.splitlines()[0] in (await harness.run_tool(read, path=f"d/{name}")).content


async def test_lines_are_found_by_expression(harness: ToolHarness) -> None:
    """Content with numbers, names, counts; case, globs and context; only a bad pattern is an error."""
    await harness.sandbox.run(
        ExecRequest(script="mkdir s; printf 'one\\nTwo 22\\nthree\\n' > s/a.py; printf 'two\\n' > s/b.txt")
    )
    assert (await harness.run_tool(grep, pattern=r"\d{2}")).content == "s/a.py:2:Two 22"
    assert (
        await harness.run_tool(grep, pattern="two", ignore_case=True, output="files")
    ).content == "s/a.py\ns/b.txt"
    assert (await harness.run_tool(grep, pattern="o", glob="*.py", output="count")).content == "s/a.py:2"
    context = await harness.run_tool(grep, pattern="Two", path="s/a.py", context=1)
    assert context.content.splitlines() == ["s/a.py-1-one", "s/a.py:2:Two 22", "s/a.py-3-three"]
    assert (await harness.run_tool(grep, pattern="nowhere")).content == "nothing matches"
    refused = await harness.run_tool(grep, pattern="(")
    assert not refused.ok
    assert "refused" in refused.content
    assert not (await harness.run_tool(grep, pattern="a", path="nowhere")).ok


async def test_a_directory_is_listed(harness: ToolHarness) -> None:
    """Names, kinds and sizes, by name."""
    await harness.sandbox.run(ExecRequest(script="mkdir d; printf 12345 > file; ln -s file link"))
    listed = await harness.run_tool(list_files)
    assert [line.split("  ")[0] for line in listed.content.splitlines()] == ["d/", "file", "link"]
    assert "file  5" in listed.content
    assert (await harness.run_tool(list_files, path="d")).content == "empty"
    assert not (await harness.run_tool(list_files, path="none")).ok


async def test_files_are_described_moved_copied_and_removed(harness: ToolHarness) -> None:
    """Inside the sandbox; what a model did wrong is a result that it can act on."""
    await harness.sandbox.write("d/one", b"1234")
    reported = await harness.run_tool(stat, path="d/one")
    assert (reported.detail["kind"], reported.detail["size"]) == ("file", 4)
    assert (await harness.run_tool(mkdir, path="e/f")).ok
    assert (await harness.run_tool(rename, path="d/one", to="e/f/two")).ok
    assert (await harness.run_tool(copy, path="e", to="g")).ok
    assert await harness.sandbox.read("g/f/two", limit=9) == b"1234"
    assert (await harness.run_tool(remove, path="e")).ok
    assert (await harness.run_tool(stat, path="e")).content == "there is no file e"
    listed = await harness.run_tool(list_files)
    assert sorted(listed.detail["names"]) == ["d", "g"]
    for tool, args in (
        (rename, {"path": "none", "to": "free"}),
        (copy, {"path": "g", "to": "d"}),
        (remove, {"path": "."}),
        (remove, {"path": "none"}),
    ):
        assert not (await harness.run_tool(tool, **args)).ok
    with pytest.raises(InvalidArguments):
        await harness.run_tool(copy, path="g", to="g/below")


async def test_no_file_operation_leads_out(harness: ToolHarness) -> None:
    """Neither climbing nor a link in the sandbox."""
    await harness.sandbox.run(ExecRequest(script="ln -s /tmp up; printf x >mine; mkdir -p /tmp/out-$$"))
    for tool, args in (
        (stat, {"path": "../x"}),
        (mkdir, {"path": "up/new"}),
        (rename, {"path": "mine", "to": "up/mine"}),
        (copy, {"path": "mine", "to": "../mine"}),
        (remove, {"path": "../x"}),
        (remove, {"path": "up/anything"}),
    ):
        assert not (await harness.run_tool(tool, **args)).ok, (tool, args)
    assert await harness.sandbox.read("mine", limit=9) == b"x"


def test_who_is_asked_follows_the_permission_mode() -> None:
    """Reading never asks, writing asks in `ask` alone."""
    modes = [SandboxConfig.model_validate({"permissionMode": mode}) for mode in ("ask", "edit", "bypass")]
    for tool in (read, glob, grep, list_files, stat):
        assert [tool.needs_approval(mode) for mode in modes] == [False, False, False]
    for tool in (write, edit, mkdir, rename, copy, remove):
        assert [tool.needs_approval(mode) for mode in modes] == [True, False, False]


def test_file_operations_need_a_sandbox_and_a_workspace_that_can_be_written() -> None:
    """A read-only workspace offers `stat` alone, one without a sandbox none of them."""
    harness = _make_harness(cast("Any", None), SandboxSpec(label="l", namespace="n", workspace=Path("/w")))
    environment = harness.context.environment
    read_only = replace(environment, spec=replace(environment.spec, read_only=True))
    offered = {
        name: [
            tool.is_offered(replace(harness.context, environment=one))
            for one in (environment, read_only, replace(environment, files_only=True))
        ]
        for name, tool in FILE_OPERATIONS.items()
    }
    changing = {name: [True, False, False] for name in ("mkdir", "rename", "copy", "remove")}
    assert offered == changing | {"stat": [True, True, False]}


PIXEL = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x04\0\0\0\xb5\x1c\x0c\x02\0\0\0\0IEND\xaeB`\x82"
)


async def test_an_image_is_shown_and_other_files_are_explained(harness: ToolHarness) -> None:
    """The result has the image's bytes for the model; what is no image, too large or absent is said."""
    await harness.sandbox.write("chart.png", PIXEL)
    shown = await harness.run_tool(view_image, path="chart.png")
    (image,) = shown.images
    assert (image.name, image.media_type, image.content) == ("chart.png", "image/png", PIXEL)
    assert shown.content.startswith("chart.png (image/png, ")
    await harness.sandbox.write("notes.png", b"only text")
    await harness.sandbox.write("large.png", PIXEL + bytes(MAX_IMAGE_BYTES))
    for path, why in {
        "notes.png": "but text/plain",
        "large.png": "the most is 5.0 MB",
        "no": "no file",
    }.items():
        refused = await harness.run_tool(view_image, path=path)
        assert (refused.ok, refused.images) == (False, ())
        assert why in refused.content
