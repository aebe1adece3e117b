"""Hooks of installed packages: async functions, by entry points of the group `dovecote.hooks`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import get_args

import structlog

from gateway.agents.installed_calls import TimeLimitReached, await_installed
from gateway.config.installed import installed_entry_points
from gateway.records.tools.http_requests import DEFAULT_HOOK_TIMEOUT, OnFailure, Point
from gateway.tools.hooks.answer import ALLOW, Hook, HookAnswer, HookCall, HookFailed

log = structlog.get_logger(__name__)

GROUP = "dovecote.hooks"
RULES_ATTRIBUTE = "__dovecote_hook__"

HookFunction = Callable[[HookCall], Awaitable[HookAnswer | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRules:
    """Where a function is asked, for how many seconds, and what its failure counts as."""

    points: frozenset[Point] = frozenset({"before_tool"})
    timeout: float = float(DEFAULT_HOOK_TIMEOUT)
    on_failure: OnFailure = "deny"


class BrokenHook(RuntimeError):
    """An installed hook does not load, or is not an async function with one parameter."""


def hook(
    *points: Point, timeout: float = DEFAULT_HOOK_TIMEOUT, on_failure: OnFailure = "deny"
) -> Callable[[HookFunction], HookFunction]:
    """Return a decorator that sets the rules of a function; one without it is asked before tool calls."""
    unknown = set(points) - set(get_args(Point))
    if unknown or not points:
        raise BrokenHook(f"hook points are {', '.join(get_args(Point))}, not {', '.join(unknown) or 'none'}")

    def mark(function: HookFunction) -> HookFunction:
        rules = HookRules(points=frozenset(points), timeout=timeout, on_failure=on_failure)
        setattr(function, RULES_ATTRIBUTE, rules)
        return function

    return mark


class FunctionHook(Hook):
    """A function as a hook; any error of it is a failure."""

    def __init__(self, name: str, function: HookFunction) -> None:
        rules: HookRules = getattr(function, RULES_ATTRIBUTE, HookRules())
        self.name = name
        self.points = rules.points
        self.on_failure = rules.on_failure
        self._timeout = rules.timeout
        self._function = function

    async def ask(self, call: HookCall) -> HookAnswer:
        """Return what the function answers; None allows."""
        try:
            answer = await await_installed(self._function(call), seconds=self._timeout)
        except TimeLimitReached as error:
            raise HookFailed(str(error)) from error
        except Exception as error:  # a function of another package may raise anything; its rule decides
            log.exception("hook.failed", hook=self.name)
            raise HookFailed(type(error).__name__) from error
        if answer is not None and not isinstance(answer, HookAnswer):
            raise HookFailed(f"it answered with {type(answer).__name__}, not with HookAnswer")
        return answer or ALLOW


def load_hooks(entries: Iterable[EntryPoint] | None = None) -> Sequence[Hook]:
    """Return the hooks of installed packages in the order of their names; raises BrokenHook."""
    entries = installed_entry_points(GROUP) if entries is None else entries
    found: dict[str, Hook] = {}
    for entry in sorted(entries, key=lambda one: one.name):
        if entry.name in found:
            raise BrokenHook(f"two installed packages both register the hook {entry.name!r}")
        try:
            function = entry.load()
        except Exception as error:  # a third party's import may raise anything: name the package and stop
            raise BrokenHook(f"hook {entry.name!r} ({entry.value}) does not load: {error}") from error
        if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 1:
            raise BrokenHook(f"hook {entry.name!r}: {function!r} is not an async function with one parameter")
        found[entry.name] = FunctionHook(entry.name, function)
    return tuple(found.values())
