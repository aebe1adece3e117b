"""The operator's settings of the Daytona provider: `[sandbox.daytona]` of the configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, SecretStr

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl


class DaytonaSettings(TypedModel):
    """Key and endpoint of Daytona."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api_key: SecretStr | None = None
    """The organisation's key (DAYTONA_API_KEY)."""

    api_url: EndpointUrl = EndpointUrl("https://app.daytona.io/api")
    """The control plane (DAYTONA_API_URL); it returns the addresses of the sandboxes."""

    target: str | None = None
    """The region of new sandboxes (DAYTONA_TARGET); by default the organisation's."""

    snapshot: str | None = None
    """The snapshot of sandboxes whose options name none; by default Daytona's."""

    snapshots: tuple[str, ...] = ()
    """More snapshots that accounts may name in `options.snapshot`."""

    start_timeout: Annotated[float, Field(ge=5, le=600)] = 60.0
    """Seconds that creating or starting a sandbox may take."""

    archive_minutes: Annotated[int, Field(ge=0, le=43_200)] = 30
    """Minutes until a stopped sandbox is archived, unless its options say otherwise; 0 means the maximum."""
