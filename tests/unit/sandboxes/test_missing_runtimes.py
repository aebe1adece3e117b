"""B1: a runtime that is missing is named in the tool's description, and in what a command came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gateway.environments.environment import Environment
from gateway.tools.builtin.bash import bash, missing_runtime_note
from gateway.tools.tool import ToolContext
from sandbox import registry
from sandbox.config import SCREENS, SandboxConfig
from sandbox.host.isolation.runtimes import NAMES, find, missing, missing_git, missing_screens
from sandbox.host.settings import HostSettings
from sandbox.labels import Owner, Scope
from sandbox.model import ExecResult, SandboxSpec


def described(*lacks: str) -> str:
    """Return how bash is described where these runtimes are missing."""
    owner = Owner(account="a", scope=Scope.SESSION, conversation="c", agent="g", person="")
    spec = SandboxSpec(label="one", namespace="space")
    environment = Environment(config=SandboxConfig(), spec=spec, owner=owner, missing_runtimes=lacks)
    nothing = cast("Any", None)
    return bash.spec(
        ToolContext(
            turn=nothing, environment=environment, environment_resolver=nothing, jobs=nothing, files=nothing
        )
    ).description


def test_the_description_names_what_is_missing() -> None:
    """The model gets a note before its first try; if nothing is missing there is no note."""
    assert "Runtimes: bash, python, node (node, uv not installed here);" in described("node", "uv", "browser")
    assert "not installed" not in described()


@pytest.mark.parametrize(
    ("said", "note"),
    [
        (b"bash: line 1: node: command not found\n", "node"),
        (b"bash: line 1: npm: command not found\nbash: line 2: pip: command not found\n", "node, python3"),
        (b"bash: line 1: my-tool: command not found\n", None),
        (b"", None),
    ],
)
def test_a_command_that_wanted_a_missing_runtime_gets_a_hint(said: bytes, note: str | None) -> None:
    """The note names the runtime behind the program, and no other program."""
    expected = {} if note is None else {"note": f"not installed in this sandbox: {note}"}
    assert missing_runtime_note(ExecResult(exit_code=127, stdout=b"", stderr=said)) == expected
    assert missing_runtime_note(ExecResult(exit_code=1, stdout=b"", stderr=said)) == {}


def test_this_machine_says_what_it_lacks(tmp_path: Path) -> None:
    """The host provider's manifest reports the same as doctor, without opening anything."""
    settings = HostSettings(runtime_directories=(tmp_path,))
    lacking = registry.plugin("host").missing_runtimes(settings)
    assert list(lacking) == [*missing(find((tmp_path,))), *missing_git(), *missing_screens()]
    assert set(lacking) <= {*NAMES, *SCREENS, "git"}
    assert list(missing(())) == list(NAMES)
