"""Tools that start and follow background jobs are offered where a job can exist."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.environments.environment import Environment
from gateway.store.accounts.records import Record
from gateway.tools.builtin.async_status import async_status
from gateway.tools.builtin.bash import bash
from gateway.tools.tool import ToolContext
from sandbox.config import SandboxConfig
from sandbox.labels import Owner, Scope
from sandbox.model import SandboxSpec

ANYTHING = cast("Any", None)


def environment(provider: str, *, files_only: bool = False) -> Environment:
    """Return an environment on a provider."""
    owner = Owner(account="a", scope=Scope.WORKSPACE, conversation="c", agent="g", person="", workspace="w")
    config = SandboxConfig.model_validate({"provider": provider})
    return Environment(
        config=config, spec=SandboxSpec(label="l", namespace="n"), owner=owner, files_only=files_only
    )


def context(main: Environment, *others: Environment, tools: object = None) -> ToolContext:
    """Return the context of a turn with one or several environments."""
    environments = {str(number): one for number, one in enumerate((main, *others))} if others else {}
    agent = cast("Record", type("Agent", (), {"config": {"tools": tools} if tools else {}})())
    return ToolContext(
        turn=ANYTHING,
        environment=main,
        environment_resolver=ANYTHING,
        jobs=ANYTHING,
        files=ANYTHING,
        agent=agent,
        environments=environments,
    )


@pytest.mark.parametrize("provider", ["host", "docker", "e2b", "daytona", "kubernetes"])
def test_jobs_are_offered_where_the_provider_has_them(provider: str) -> None:
    """Bash can run in the background, and a job can be followed."""
    offered = context(environment(provider))
    assert async_status.is_offered(offered)
    assert "background" in bash.spec(offered).schema["properties"]


def test_jobs_are_not_offered_on_lambda() -> None:
    """Neither the tool nor the argument is shown to the model."""
    offered = context(environment("lambda"))
    assert not async_status.is_offered(offered)
    assert list(bash.spec(offered).schema["properties"]) == ["command"]
    assert "resultId" not in bash.spec(offered).description


def test_one_workspace_with_jobs_is_enough() -> None:
    """A job of any of the agent's sandboxes can be followed."""
    assert async_status.is_offered(context(environment("lambda"), environment("host")))
    assert not async_status.is_offered(context(environment("host", files_only=True)))


async def test_a_background_command_on_lambda_is_refused_with_the_alternative() -> None:
    """A model that asks for one although it is not offered learns what to do."""
    refused = await bash.run(context(environment("lambda")), {"command": "ls", "background": True}, "key")
    assert not refused.ok
    assert "without background" in refused.content


def test_bash_that_is_marked_async_needs_no_argument() -> None:
    """Every command is a job, and the tool's description mentions it."""
    spec = bash.spec(context(environment("host"), tools={"bash": {"async": True}}))
    assert list(spec.schema["properties"]) == ["command"]
    assert "Each command is a background job" in spec.description
    assert (
        "background"
        in bash.spec(context(environment("host"), tools={"bash": {"async": False}})).schema["properties"]
    )
