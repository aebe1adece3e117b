"""The MCP servers of an agent record: `config.mcp.SERVER`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

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
from gateway.records.tools.background import (
    IN_SANDBOX,
    BackgroundAfter,
    CallTimeout,
    IsAsync,
    check_timeout,
)

MAX_SERVERS = 20
DEFAULT_TIMEOUT = 60

_HEADER_VALUE = re.compile(r"[\x20-\x7e]*\Z")
RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "last-event-id"}
    | {"mcp-protocol-version", "mcp-session-id", "transfer-encoding", "upgrade"}
)
_RESERVED_VARIABLES = re.compile(r"(?:LD_|DYLD_|GIT_|BASH_ENV\Z|NODE_OPTIONS\Z|PYTHONSTARTUP\Z)")


def _header_name(name: str) -> str:
    if name.lower() in RESERVED_HEADERS:
        raise ValueError(f"the header {name} is set by the gateway: leave it out")
    return name


def _header_value(secret: SecretStr) -> SecretStr:
    if not _HEADER_VALUE.match(secret.get_secret_value()):
        raise ValueError("must consist of visible ASCII characters and spaces")
    return secret


def _variable(name: str) -> str:
    if _RESERVED_VARIABLES.match(name):
        raise ValueError(f"the variable {name} changes how programs are loaded: leave it out")
    return name


HeaderName = Annotated[
    StrictStr, Field(pattern=r"^[A-Za-z0-9-]+$", max_length=100), AfterValidator(_header_name)
]
HeaderSecret = Annotated[SecretStr, Field(max_length=4096), AfterValidator(_header_value)]
VariableName = Annotated[
    StrictStr, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100), AfterValidator(_variable)
]
VariableSecret = Annotated[SecretStr, Field(max_length=4096)]
ToolPattern = Annotated[StrictStr, Field(min_length=1, max_length=128)]
ServerName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=40)]


class McpOAuthConfig(TypedModel):
    """The client that the operator registered at the server's authorization server.

    Without one the gateway registers itself (RFC 7591). `scope` replaces the scopes that the server asks for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: Annotated[StrictStr, Field(min_length=1, max_length=500)] | None = None
    client_secret: Annotated[SecretStr, Field(min_length=1, max_length=4096)] | None = None
    scope: Annotated[StrictStr, Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _secret_of_client(self) -> McpOAuthConfig:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret belongs to client_id: give both")
        return self


class McpServerConfig(TypedModel):
    """An MCP server: a `url` (streamable HTTP), or a `command` that runs in the agent's sandbox (stdio).

    `tools` are the offered tools, by name or with `*` at the end; null offers all. `prefix` begins the names
    under which the model sees them; null is the server's name and `_`. `resources` and `prompts` say whether
    the model may read those. `oauth` is the client with which people sign in, if the server wants them to;
    null: the gateway registers one. `approval` "default" follows the
    sandbox's permission mode. `timeout` is in seconds, for one call. With `async` each call of a tool is a
    background job; with `background_after` one that takes longer, in seconds, becomes a job.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    url: CallbackUrl | None = None
    headers: dict[HeaderName, HeaderSecret] = Field(default_factory=dict, max_length=20)
    oauth: McpOAuthConfig | None = None
    command: Annotated[StrictStr, Field(min_length=1, max_length=4000)] | None = None
    env: dict[VariableName, VariableSecret] = Field(default_factory=dict, max_length=50)
    tools: tuple[ToolPattern, ...] | None = Field(default=None, max_length=100)
    prefix: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]*$", max_length=40)] | None = None
    resources: StrictBool = True
    prompts: StrictBool = True
    approval: Literal["default", "always", "never"] = "default"
    timeout: CallTimeout = DEFAULT_TIMEOUT
    is_async: IsAsync = False
    background_after: BackgroundAfter | None = None

    @model_validator(mode="after")
    def _one_transport(self) -> McpServerConfig:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url (streamable HTTP) or command (stdio, in the sandbox)")
        if self.url is None and self.headers:
            raise ValueError("headers belong to url: use env with command")
        if self.url is None and self.oauth is not None:
            raise ValueError("oauth belongs to url: use env with command")
        if self.command is None and self.env:
            raise ValueError("env belongs to command: use headers with url")
        return self

    @model_validator(mode="after")
    def _usable_background(self) -> McpServerConfig:
        for name, is_set in (("async", self.is_async), ("background_after", self.background_after)):
            if is_set and self.command is not None:
                raise ValueError(f"{name}: {IN_SANDBOX.format(name)}")
        if self.is_async and self.background_after is not None:
            raise ValueError("async makes each call a background job: leave background_after out")
        check_timeout(self.timeout, may_be_job=self.may_be_job, options="async or background_after")
        return self

    @property
    def may_be_job(self) -> bool:
        """Return whether calls are, or may become, background jobs."""
        return self.is_async or self.background_after is not None

    @property
    def lets_people_sign_in(self) -> bool:
        """Return whether requests carry the token of the person who asks: no key is configured for all."""
        return self.url is not None and "authorization" not in {name.lower() for name in self.headers}

    def offers(self, tool: str) -> bool:
        """Return whether the filter offers a tool of this name."""
        return self.tools is None or any(
            tool.startswith(pattern[:-1]) if pattern.endswith("*") else tool == pattern
            for pattern in self.tools
        )


McpServers = Annotated[dict[ServerName, McpServerConfig], Field(max_length=MAX_SERVERS)]
