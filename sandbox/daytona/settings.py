"""What an operator may set of the Daytona provider: `[sandbox.daytona]` of the configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Url = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]


class DaytonaSettings(BaseModel):
    """Key and endpoint of the service."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api_key: SecretStr | None = None
    """The key of the organisation (DAYTONA_API_KEY)."""

    api_url: Url = "https://app.daytona.io/api"
    """The control plane (DAYTONA_API_URL); it tells where the sandboxes themselves are reached."""

    target: str | None = None
    """The region sandboxes are made in (DAYTONA_TARGET); by default the organisation's."""

    snapshot: str | None = None
    """The snapshot sandboxes are made from where their own options name none; by default the service's."""

    snapshots: tuple[str, ...] = ()
    """Further snapshots that accounts may name in `options.snapshot`."""

    start_timeout: Annotated[float, Field(ge=5, le=600)] = 60.0
    """Seconds that making or starting a sandbox may take."""

    archive_minutes: Annotated[int, Field(ge=0, le=43_200)] = 30
    """Minutes after which a stopped sandbox is archived, unless its options say; 0: as late as can be."""
