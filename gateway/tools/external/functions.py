"""Make a tool of a typed async function with a docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import structlog
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic_core import to_jsonable_python

from gateway.agents.clients.text import repair_surrogates
from gateway.agents.installed_calls import TimeLimitReached, await_installed
from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import rule_needs_approval
from gateway.tools.external_tools import MAX_NAME, tool_name
from gateway.tools.tool import InvalidArguments, JobCalls, Tool, ToolContext, definition_of, fixed

log = structlog.get_logger(__name__)

DEFAULT_TIMEOUT = 60.0
"""Seconds that a function may take, unless it declares another limit."""

RULES_ATTRIBUTE = "__dovecote_tool__"

ToolCallable = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """Which call a function serves: a parameter of this type is filled by the gateway, not by the model.

    `key` is the same when the same call is executed again.
    """

    account: str
    agent: str
    conversation: str
    turn: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRules:
    """How a function is called. `approval` "default" follows the permission mode of the agent's sandbox.

    `repeatable`: a call that was interrupted by a crash may be executed again. `background`: each call is a
    background job. `background_after`: a call that takes longer, in seconds, becomes a job.
    """

    approval: Literal["default", "always", "never"] = "default"
    repeatable: bool = False
    timeout: float = DEFAULT_TIMEOUT
    background: bool = False
    background_after: float | None = None

    @property
    def jobs(self) -> JobCalls | None:
        """How calls become background jobs."""
        may_be = self.background or self.background_after is not None
        return JobCalls(after=None if self.background else self.background_after) if may_be else None


class BrokenTool(RuntimeError):
    """A function cannot be a tool, or two tools have the same name."""


def tool(
    *,
    approval: Literal["default", "always", "never"] = "default",
    repeatable: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    background: bool = False,
    background_after: float | None = None,
) -> Callable[[ToolCallable], ToolCallable]:
    """Return a decorator that sets the rules of a function; one without it has the defaults."""

    def mark(function: ToolCallable) -> ToolCallable:
        rules = FunctionRules(
            approval=approval,
            repeatable=repeatable,
            timeout=timeout,
            background=background,
            background_after=background_after,
        )
        setattr(function, RULES_ATTRIBUTE, rules)
        return function

    return mark


def function_tool(name: str, function: object) -> Tool:
    """Return the tool of a function; raises BrokenTool."""
    if tool_name(name) != name:
        raise BrokenTool(f"tool {name!r}: a name has letters, digits, _ and -, {MAX_NAME} at most")
    if not inspect.iscoroutinefunction(function):
        raise BrokenTool(f"tool {name!r}: {function!r} is not an async function")
    description = inspect.getdoc(function)
    if not description:
        raise BrokenTool(f"tool {name!r}: the function needs a docstring, which the model reads")
    arguments, info = _arguments(name, function)
    rules: FunctionRules = getattr(function, RULES_ATTRIBUTE, FunctionRules())
    spec = ToolSpec(name=name, description=description, schema=_schema(name, arguments))

    def validate(_schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        _parse(arguments, args)

    async def run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        parsed = _parse(arguments, args)
        given = {field: getattr(parsed, field) for field in arguments.model_fields}
        if info is not None:
            given[info] = _call_info(context, key)
        return await _run(name, function(**given), rules.timeout, context.environment.config.output_limit)

    return Tool(
        spec=fixed(spec),
        needs_approval=lambda config: rule_needs_approval(rules.approval, config),
        run=run,
        idempotent=rules.repeatable,
        validate=validate,
        uses_workspace=False,
        definition=definition_of(spec),
        jobs=rules.jobs,
    )


def _arguments(name: str, function: ToolCallable) -> tuple[type[BaseModel], str | None]:
    """Return the model of a function's parameters, and the name of the one that takes a CallInfo."""
    try:
        types = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise BrokenTool(f"tool {name!r}: a type of its parameters is unknown: {error}") from error
    fields: dict[str, Any] = {}
    info: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise BrokenTool(f"tool {name!r}: its parameters must have names, not {parameter}")
        if parameter.name not in types:
            raise BrokenTool(f"tool {name!r}: the parameter {parameter.name!r} needs a type")
        if types[parameter.name] is CallInfo:
            info = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (types[parameter.name], Field(default=default))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields), info
    except (PydanticUserError, NameError) as error:
        raise BrokenTool(f"tool {name!r}: its parameters cannot be described: {error}") from error


def _schema(name: str, arguments: type[BaseModel]) -> Mapping[str, Any]:
    try:
        schema = arguments.model_json_schema()
    except PydanticUserError as error:
        raise BrokenTool(f"tool {name!r}: its parameters have no JSON schema: {error}") from error
    return {"properties": {}, **schema}


def _parse(arguments: type[BaseModel], args: Mapping[str, Any]) -> BaseModel:
    try:
        return arguments.model_validate(dict(args))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc'])) or '/'}: {one['msg']}" for one in error.errors())
        raise InvalidArguments("; ".join(problems)) from error


async def _run(name: str, call: Awaitable[Any], timeout: float, limit: int) -> ToolResult:
    try:
        value = await await_installed(call, seconds=timeout)
    except TimeLimitReached:
        return ToolResult(
            ok=False, content=f"the tool took longer than {timeout:g} s; it may have run in part"
        )
    except ValueError as error:
        return ToolResult(ok=False, content=repair_surrogates(str(error))[:limit])
    except Exception:  # a function of another package may raise anything; its turn continues
        log.exception("tool.failed", tool=name)
        return ToolResult(ok=False, content="the tool failed; the operator finds the reason in the log")
    text = value if isinstance(value, str) else json.dumps(to_jsonable_python(value), ensure_ascii=False)
    shown = text if len(text) <= limit else f"{text[:limit]}\n[output truncated]"
    detail = {"truncated": True} if len(text) > limit else {}
    return ToolResult(ok=True, content=repair_surrogates(shown), detail=detail)


def _call_info(context: ToolContext, key: str) -> CallInfo:
    turn = context.turn
    return CallInfo(
        account=turn.account, agent=turn.agent, conversation=turn.conversation, turn=turn.id, key=key
    )
