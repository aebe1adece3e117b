"""Find the agents of installed packages: entry points of the group `dovecote.agents`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

from gateway.agents.port import Agent
from gateway.config.installed import installed_entry_points
from gateway.config.setting_types import ENTRY_MODEL, ENTRY_PREFIX

GROUP = "dovecote.agents"

ACCEPTED = (
    "an async function with one parameter (AgentTurn), a pydantic-ai Agent, a compiled LangGraph graph, "
    "or an object of gateway.agents.port.Agent"
)


class BrokenAgent(RuntimeError):
    """An installed agent does not load, cannot run turns, or has the name of another."""


def installed_names() -> tuple[str, ...]:
    """Return the names of the installed agents, without loading them."""
    return tuple(sorted(entry.name for entry in installed_entry_points(GROUP)))


def entry_problem(model: str, field: str = "agent.model") -> str | None:
    """Return why an `entry:NAME` cannot be used here, or None."""
    name, known = model.removeprefix(ENTRY_PREFIX), installed_names()
    if name in known:
        return None
    there_are = f"there are {', '.join(known)}" if known else "no package with an agent is installed"
    return f'{field} is "{model}": {there_are}; install the package that registers it in {GROUP}'


def load_agents(entries: Iterable[EntryPoint] | None = None) -> Mapping[str, Agent]:
    """Return the agents of installed packages by name; raises BrokenAgent."""
    found: dict[str, Agent] = {}
    entries = installed_entry_points(GROUP) if entries is None else entries
    for entry in sorted(entries, key=lambda one: one.name):
        if not re.fullmatch(ENTRY_MODEL, ENTRY_PREFIX + entry.name):
            raise BrokenAgent(f"agent {entry.name!r}: a name has letters, digits, dot, _ and -")
        if entry.name in found:
            raise BrokenAgent(f"two installed packages both register the agent {entry.name!r}")
        try:
            value = entry.load()
        except Exception as error:  # a third party's import may raise anything: name the package and stop
            raise BrokenAgent(f"agent {entry.name!r} ({entry.value}) does not load: {error}") from error
        found[entry.name] = to_agent(entry.name, value)
    return found


def to_agent(name: str, value: Any) -> Agent:
    """Return the agent that an entry point names; raises BrokenAgent."""
    if Agent in type(value).__mro__:
        agent: Agent = value
        return agent
    from gateway.agents.custom import graph_agent  # only an installed agent needs the runner
    from gateway.agents.custom.runner import from_function, from_generator

    if graph_agent.is_graph(value):
        return graph_agent.from_graph(name, value)
    if inspect.iscoroutinefunction(value) and _takes_turn(value):
        return from_function(name, value)
    if inspect.isasyncgenfunction(value) and _takes_turn(value):
        return from_generator(name, value)
    if "pydantic_ai" in sys.modules:
        from gateway.agents.custom.pydantic_ai_agent import from_library_agent, is_library_agent

        if is_library_agent(value):
            return from_library_agent(name, value)
    remedy = "; call its compile()" if callable(getattr(value, "compile", None)) else ""
    raise BrokenAgent(f"agent {name!r}: {value!r} is not {ACCEPTED}{remedy}")


def _takes_turn(function: Any) -> bool:
    required = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
    ]
    return len(required) == 1 and required[0].kind is not inspect.Parameter.KEYWORD_ONLY
