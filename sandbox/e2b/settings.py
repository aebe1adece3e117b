"""What an operator may set of the E2B provider: `[sandbox.e2b]` of the configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Url = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]


class E2bSettings(BaseModel):
    """Key and endpoints; several vendors speak this API, so each of them can be named."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api_key: SecretStr | None = None
    """The team's key (E2B_API_KEY)."""

    template: Annotated[str, Field(min_length=1)] = "base"
    """The template sandboxes are made from where a sandbox's own options name none."""

    templates: tuple[str, ...] = ()
    """Further templates that accounts may name in `options.template`; empty: only the default one."""

    domain: Annotated[str, Field(min_length=1)] = "e2b.app"
    """The domain of the service."""

    api_url: Url | None = None
    """The control plane; by default https://api.<domain>."""

    sandbox_url: Url | None = None
    """Where sandboxes are reached; by default the service's own address of each."""

    http_version: Literal["1.1", "2"] = "2"
    """HTTP/1.1 where something on the way mishandles long HTTP/2 connections."""

    request_timeout: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Seconds a control-plane call may take."""

    longest: Annotated[int, Field(ge=60, le=86_400)] = 3600
    """Seconds a sandbox may live on without being used: what the plan allows (an hour, or a day)."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "user"
    """Who commands run as inside."""
