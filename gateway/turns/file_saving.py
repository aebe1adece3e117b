"""Save a turn's files from its sandboxes into the workspace store, before its end is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from delivery.database.engine import DatabaseUnavailable
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.store.turns.turns import Turn
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

SAVE_SECONDS = 60.0
"""Seconds that the end of a turn waits for its files; then it ends with a notice."""

RETRY_DELAYS = (1.0, 3.0)


async def save_files(
    environment_resolver: EnvironmentResolver, environments: Collection[Environment], turn: Turn
) -> str | None:
    """Save the files of a turn's environments; return why some could not be saved, or None.

    An earlier attempt of the turn may have been killed before its files were saved, so that a repeated
    attempt saves those of sandboxes that it did not use itself.
    """
    problems = [
        problem
        for environment in environments
        if (problem := await _save(environment_resolver, environment, recovered=turn.attempt > 1))
    ]
    if not problems:
        return None
    log.warning("turn.files_not_saved", turn=turn.id, error=problems[0])
    return problems[0]


async def _save(
    environment_resolver: EnvironmentResolver, environment: Environment, *, recovered: bool
) -> str | None:
    try:
        async with asyncio.timeout(SAVE_SECONDS):
            for delay in (*RETRY_DELAYS, None):
                try:
                    await environment_resolver.save_files(environment, recovered=recovered)
                    break
                except SandboxError as error:
                    if delay is None or error.remedy != "retry":
                        raise
                await asyncio.sleep(delay)
    except TimeoutError:
        return f"the sandbox did not answer within {SAVE_SECONDS:g} s"
    except (SandboxError, DatabaseUnavailable, OSError) as error:
        return str(error)
    return None


def render_unsaved(problem: str) -> str:
    """Return the notice that files of a turn are not in the workspace store."""
    return (
        f"The files of this turn are not in the workspace yet: {problem.rstrip('.')}. "
        "They are saved when the sandbox is used again."
    )
