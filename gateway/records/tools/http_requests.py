"""The HTTP requests of an agent record: `config.tools.http.NAME` and `config.hooks.http.NAME`."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    StrictStr,
    model_validator,
)

from egress.typed_model import TypedModel
from egress.urls import CallbackUrl
from gateway.records.fields import Whsec
from gateway.records.tools.background import CallTimeout, IsAsync, check_timeout
from gateway.records.tools.mcp_servers import DEFAULT_TIMEOUT, HeaderName, HeaderSecret
from gateway.records.tools.openapi_tools import MAX_DOCUMENTS, OpenApiToolsConfig

MAX_HTTP_TOOLS = 50
MAX_SCHEMA_BYTES = 32 * 1024

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A part of a URL that a call's argument replaces."""

ToolName = Annotated[StrictStr, Field(min_length=1, max_length=60)]
ToolNames = Annotated[tuple[ToolName, ...], Field(max_length=100)]


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise ValueError('must be a JSON schema of the type "object" with properties')
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(one in schema.get("properties", {}) for one in required):
        raise ValueError("required must be a list of names that properties has")
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"must have at most {MAX_SCHEMA_BYTES} bytes")
    return schema


ToolParameters = Annotated[dict[str, Any], AfterValidator(_check_schema)]
"""The JSON schema of a tool's arguments."""


class HttpToolConfig(TypedModel):
    """A tool that sends one HTTP request.

    `{argument}` in the URL's path or query is replaced by an argument. The other arguments are the query of
    GET and DELETE, else the JSON body. `parameters` is the JSON schema of the arguments. `repeatable`: an
    interrupted call may be sent again. With `async` each call is a background job.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    url: CallbackUrl
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    description: Annotated[StrictStr, Field(min_length=1, max_length=4000)]
    parameters: ToolParameters = Field(default_factory=dict)
    headers: dict[HeaderName, HeaderSecret] = Field(default_factory=dict, max_length=20)
    approval: Literal["default", "always", "never"] = "default"
    timeout: CallTimeout = DEFAULT_TIMEOUT
    repeatable: bool = False
    is_async: IsAsync = False

    @model_validator(mode="after")
    def _known_placeholders(self) -> HttpToolConfig:
        unknown = [one for one in self.placeholders() if one not in self.parameters.get("properties", {})]
        if unknown:
            raise ValueError(f"url: parameters.properties has no {unknown[0]!r}, which the URL names")
        check_timeout(self.timeout, may_be_job=self.is_async, options="async")
        return self

    def placeholders(self) -> list[str]:
        """Return the arguments that the URL contains."""
        return PLACEHOLDER.findall(self.url)

    def arguments_schema(self) -> dict[str, Any]:
        """Return the schema of the arguments; those of the URL are required."""
        required = {*self.parameters.get("required", ()), *self.placeholders()}
        whole = {"type": "object", "properties": {}, **self.parameters}
        return whole | ({"required": sorted(required)} if required else {})


HttpToolName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=60)]

COMMANDS = "bash"
"""The tool that runs commands."""

DocumentName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=40)]


class BashToolConfig(TypedModel):
    """The tool `bash`: with `async` each command is a background job."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    is_async: StrictBool = Field(default=False, alias="async")


class AgentTools(TypedModel):
    """Which tools an agent has: `names` limits the built-in and installed ones; null offers all.

    `http` are single requests, `openapi` the operations of documents. `scripts` is the path of the
    workspace's file that describes its scripts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: ToolNames | None = None
    bash: BashToolConfig = BashToolConfig()
    http: Annotated[dict[HttpToolName, HttpToolConfig], Field(max_length=MAX_HTTP_TOOLS)] = Field(
        default_factory=dict
    )
    openapi: Annotated[dict[DocumentName, OpenApiToolsConfig], Field(max_length=MAX_DOCUMENTS)] = Field(
        default_factory=dict
    )
    scripts: Annotated[StrictStr, Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _scripts_are_commands(self) -> AgentTools:
        if self.scripts is not None and self.names is not None and COMMANDS not in self.names:
            raise ValueError(f"scripts: names must have {COMMANDS!r}, because an agent may write its scripts")
        return self


Point = Literal["before_turn", "after_turn", "before_tool", "after_tool"]
OnFailure = Literal["deny", "allow"]

MAX_HOOKS = 10
MAX_HOOK_TIMEOUT = 60
DEFAULT_HOOK_TIMEOUT = 10


class HttpHookConfig(TypedModel):
    """An HTTP request that decides about tool calls and turns of the agent.

    The request is signed with `secret` (Standard Webhooks). `tools` limits the tools, by name or with `*`
    at the end. `on_failure` is what counts if there is no usable answer within `timeout` seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: CallbackUrl
    secret: Annotated[SecretStr, Whsec]
    points: tuple[Point, ...] = Field(default=("before_tool",), min_length=1, max_length=4)
    tools: tuple[Annotated[StrictStr, Field(min_length=1, max_length=128)], ...] | None = Field(
        default=None, max_length=100
    )
    timeout: Annotated[int, Field(ge=1, le=MAX_HOOK_TIMEOUT, strict=True)] = DEFAULT_HOOK_TIMEOUT
    on_failure: OnFailure = "deny"

    def is_about(self, tool: str | None) -> bool:
        """Return whether the hook is asked about a tool; None: about a turn."""
        if tool is None or self.tools is None:
            return True
        return any(
            tool.startswith(pattern[:-1]) if pattern.endswith("*") else tool == pattern
            for pattern in self.tools
        )


HttpHooks = Annotated[
    dict[Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=60)], HttpHookConfig],
    Field(max_length=MAX_HOOKS),
]
