"""Bind a decision to exactly one tool call: its arguments, where it runs, and what it would change."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gateway.agents.port import PendingToolCall
from gateway.conversations.approval_question import CallTarget
from gateway.conversations.text_change import PresentText
from gateway.environments.environment import Environment
from gateway.store.turns.approvals import Approval

MAX_QUESTIONS = 3
"""How often people are asked about one call that changes after each approval; then it is refused."""


CallTargets = Callable[[PendingToolCall], CallTarget]
"""Returns where a call would run."""

FindInTool = Callable[[PendingToolCall], str | None]
"""Returns the address that a call would send a request to, or the definition of its tool, if it has one."""


class PreviewChanges(Protocol):
    """Returns the files that calls would change, by the ids of the calls, as each call would find its file.

    The calls are made one after the other. A file that cannot be read is left out. With `start` the sandbox
    is started for that.
    """

    @abstractmethod
    async def __call__(
        self, calls: Sequence[PendingToolCall], /, *, start: bool = False
    ) -> Mapping[str, PresentText]:
        """Return the files; raises nothing for one that cannot be read."""


async def no_previews(_calls: Sequence[PendingToolCall], *, start: bool = False) -> Mapping[str, PresentText]:
    """Return no files: the questions show all arguments."""
    del start
    return {}


def call_digest(
    tool: str,
    args: Mapping[str, Any],
    sandbox_fingerprint: str,
    address: str | None = None,
    *,
    definition: str | None = None,
    file: str | None = None,
) -> str:
    """Return the hash that binds a decision to one exact call in one sandbox configuration.

    `address`: what the call sends a request to, from the gateway. `definition`: a hash of what the author of
    the tool states about it. `file`: the state of the file that it changes, if the question showed it.
    """
    further = {"definition": definition, "file": file}
    bound: list[Any] = [tool, args, sandbox_fingerprint, *([address] if address is not None else [])]
    if stated := {name: value for name, value in further.items() if value is not None}:
        bound.append(stated)
    exact = json.dumps(bound, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of(
    call: PendingToolCall, sandbox_fingerprint: str, target: CallTarget, file: PresentText | None = None
) -> str:
    """Return the hash of a call at its target; `file` is the one that it changes, if that is known."""
    return call_digest(
        call.name,
        call.args,
        sandbox_fingerprint,
        target.address,
        definition=target.definition,
        file=file.state if file is not None else None,
    )


def covers(
    approval: Approval,
    call: PendingToolCall,
    sandbox_fingerprint: str,
    target: CallTarget,
    file: PresentText | None = None,
) -> bool:
    """Return whether an approval is of exactly this call. One whose question showed no file covers any."""
    return approval.digest in {digest_of(call, sandbox_fingerprint, target, one) for one in (None, file)}


def is_asked_too_often(approvals: Iterable[Approval], call: str) -> bool:
    """Return whether people were asked about a call so often that they are not asked again."""
    return sum(one.call == call for one in approvals) >= MAX_QUESTIONS


def call_target(environment: Environment, name: str = "") -> CallTarget:
    """Return where a call would run; `name` is what the agent calls the workspace."""
    network = environment.config.network
    allowed = [*network.allow_domains, *network.allow_cidrs]
    return CallTarget(
        workspace=name or environment.workspace,
        sandbox=environment.sandbox_record,
        provider=environment.provider,
        network=f"{network.mode}: {', '.join(allowed)}" if allowed else str(network.mode),
    )


def call_targets(environments: Mapping[str, Environment], default: Environment) -> CallTargets:
    """Return a function that finds the target of a call by the workspace it names."""
    names = {environment.workspace: name for name, environment in environments.items()}

    def find(call: PendingToolCall) -> CallTarget:
        name = call.args.get("workspace")
        if len(environments) > 1 and isinstance(name, str) and name in environments:
            return call_target(environments[name], name)
        return call_target(default, names.get(default.workspace, ""))

    return find


def no_definition(_call: PendingToolCall) -> None:
    """Return None: the tools are those of the gateway."""


def names_workspace(_call: PendingToolCall) -> bool:
    """Return True: the tools are those of the gateway, whose argument `workspace` names where they work."""
    return True


def with_addresses(
    targets: CallTargets,
    address: FindInTool,
    definition: FindInTool = no_definition,
    works_somewhere: Callable[[PendingToolCall], bool] = names_workspace,
) -> CallTargets:
    """Return the function with the addresses of calls that send requests, and the definitions of tools.

    The argument `workspace` of a call that works in none of the gateway's is the tool's own.
    """

    def find(call: PendingToolCall) -> CallTarget:
        placed = call if works_somewhere(call) else replace(call, args={})
        return replace(targets(placed), address=address(call), definition=definition(call))

    return find


def unknown_target(_call: PendingToolCall) -> CallTarget:
    """Return a target without names, for callers that have no environments."""
    return CallTarget()
