"""The operator's settings of the AgentRun provider: `[sandbox.agentrun]` of the configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, SecretStr

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl

TemplateName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
MAX_LIFETIME_SECONDS = 6 * 3600
"""AgentRun ends every sandbox after so many seconds."""


class AgentRunSettings(TypedModel):
    """The account, its key, the endpoints and the templates."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    access_key_id: str | None = None
    """The id of the RAM user's access key (AGENTRUN_ACCESS_KEY_ID)."""

    access_key_secret: SecretStr | None = None
    """The secret of the access key (AGENTRUN_ACCESS_KEY_SECRET)."""

    account_id: Annotated[str, Field(pattern=r"^[0-9]{1,32}$")] | None = None
    """The number of the Alibaba Cloud account (AGENTRUN_ACCOUNT_ID)."""

    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")] = "cn-hangzhou"
    """The region of the sandboxes (AGENTRUN_REGION)."""

    template: TemplateName | None = None
    """The template of sandboxes with a network (`allow-all`): its network mode is PUBLIC."""

    private_template: TemplateName | None = None
    """The template of sandboxes without one (`deny-all`): its network mode is PRIVATE."""

    control_url: EndpointUrl | None = None
    """The control plane; by default https://agentrun.<region>.aliyuncs.com."""

    data_url: EndpointUrl | None = None
    """The data plane; by default https://<account_id>-ram.agentrun-data.<region>.aliyuncs.com."""

    start_timeout: Annotated[float, Field(ge=5, le=600)] = 120.0
    """Seconds until a new sandbox must be ready."""

    wait_seconds: Annotated[float, Field(ge=1, le=25)] = 20.0
    """Seconds that one call waits for the end of a command; the service ends a call after 30."""

    longest: Annotated[int, Field(ge=60, le=MAX_LIFETIME_SECONDS)] = MAX_LIFETIME_SECONDS
    """Seconds an unused sandbox lives at most."""

    @property
    def control(self) -> str:
        """Return the address of the control plane."""
        return self.control_url or f"https://agentrun.{self.region}.aliyuncs.com"

    @property
    def data(self) -> str:
        """Return the address of the data plane, which verifies signatures of RAM users."""
        return self.data_url or f"https://{self.account_id}-ram.agentrun-data.{self.region}.aliyuncs.com"
