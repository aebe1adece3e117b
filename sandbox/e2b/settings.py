"""The operator's settings of the E2B provider: `[sandbox.e2b]` of the configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, SecretStr

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl


class E2bSettings(TypedModel):
    """Key and endpoints; several vendors offer this API, so each endpoint can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api_key: SecretStr | None = None
    """The team's key (E2B_API_KEY)."""

    template: Annotated[str, Field(min_length=1)] = "base"
    """The template of sandboxes whose options name none."""

    templates: tuple[str, ...] = ()
    """More templates that accounts may name in `options.template`; empty means only the default one."""

    domain: Annotated[str, Field(min_length=1)] = "e2b.app"
    """The domain of the service."""

    api_url: EndpointUrl | None = None
    """The control plane; by default https://api.<domain>."""

    sandbox_url: EndpointUrl | None = None
    """Where sandboxes are reached; by default the address that the service returns for each."""

    http_version: Literal["1.1", "2"] = "2"
    """Whether to use HTTP/1.1, for proxies that mishandle long HTTP/2 connections."""

    request_timeout: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Seconds a control-plane call may take."""

    longest: Annotated[int, Field(ge=60, le=86_400)] = 3600
    """Seconds an unused sandbox lives; the plan limits it (an hour, or a day)."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "user"
    """The user that commands run as."""
