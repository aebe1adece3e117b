"""The operator's settings of the Lambda provider: `[sandbox.lambda]` of the configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, SecretStr

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl
from sandbox.s3 import Bucket

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:.$-]{1,170}$")]
"""A name, or an ARN, of a function; a version or an alias may follow it."""


class LambdaSettings(TypedModel):
    """The four functions, the bucket of records and results, and the access to them."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    mount_net: FunctionName | None = None
    """The function with the file system and a network (SANDBOX_FN_MOUNT_NET)."""

    mount_nonet: FunctionName | None = None
    """The function with the file system and without a network (SANDBOX_FN_MOUNT_NONET)."""

    nomount_net: FunctionName | None = None
    """The function without the file system and with a network (SANDBOX_FN_NOMOUNT_NET)."""

    nomount_nonet: FunctionName | None = None
    """The function without the file system and without a network (SANDBOX_FN_NOMOUNT_NONET)."""

    bucket: str = ""
    """The bucket of the stack, which holds records of sandboxes and results of runs for a day."""

    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+/)*$")] = "sandboxes/"
    """The prefix of all object names; the stack's policies allow this prefix alone."""

    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")] = "us-east-1"
    """The region of functions and bucket."""

    access_key: SecretStr | None = None
    """The access key; without it the SDK's default credentials are used."""

    secret_key: SecretStr | None = None
    """The secret key of the access key."""

    endpoint: EndpointUrl | None = None
    """The address of the Lambda API, if it is not AWS's."""

    s3_endpoint: EndpointUrl | None = None
    """The address of the bucket's store, if it is not AWS's."""

    tenant_isolation: bool = True
    """Whether the functions run in tenant isolation mode, so that accounts share no environment."""

    memory_mb: Annotated[int, Field(ge=128, le=1024)] = 512
    """The memory of the functions; a sandbox that asks for more is refused."""

    function_seconds: Annotated[int, Field(ge=15, le=900)] = 300
    """The time-out of the functions."""

    @property
    def store(self) -> Bucket:
        """Return the bucket, with its keys in clear."""
        keys = (self.access_key, self.secret_key)
        access, secret = (key.get_secret_value() if key else None for key in keys)
        return Bucket(
            bucket=self.bucket,
            prefix=self.prefix,
            endpoint=self.s3_endpoint,
            region=self.region,
            access_key=access,
            secret_key=secret,
        )
