"""A bucket of an S3-compatible store: where it is, how it is opened, and its refusals in our own words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from sandbox.errors import Refused, SandboxError, Unauthorized, Unreachable

CONNECTIONS = 32
CHUNK = 1 << 20
_ABSENT = frozenset({"NoSuchKey", "404", "KeyTooLongError", "InvalidURI", "XMinioInvalidObjectName"})
_NO_BUCKET = frozenset({"NoSuchBucket"})
_FORBIDDEN = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "401", "403"})
_BUSY = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "500", "502", "503"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where objects are kept; without keys they are found as AWS's SDK finds them."""

    bucket: str
    prefix: str = "dovecote/"
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None

    def key(self, name: str) -> dict[str, str]:
        """Return what names an object in a call."""
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{name}"}


class Absent(LookupError):
    """There is no object of this name, or there can be none."""


@contextmanager
def folded(name: str, store: str) -> Iterator[None]:
    """Say in our own words what the store refuses; `store` is what is kept there. Raises Absent too."""
    from botocore.exceptions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    try:
        yield
    except ClientError as error:
        raise _error_of(error, name, store) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Unauthorized(f"the store of {store} has no keys to show: set access_key, secret_key") from error
    except (BotoCoreError, OSError, TimeoutError) as error:
        raise Unreachable(f"the store of {store} does not answer: {error}") from error


def _error_of(error: Any, name: str, store: str) -> SandboxError | Absent:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in _ABSENT:
        return Absent(name)
    if code in _NO_BUCKET:
        return Refused(f"the store of {store} has no such bucket: {error}")
    if code in _FORBIDDEN:
        return Unauthorized(f"the store of {store} refuses our keys: {error}")
    if code in _BUSY:
        return Unreachable(f"the store of {store} does not answer: {error}")
    return Refused(f"the store of {store} refuses: {error}")


async def content_of(answer: Any, limit: int) -> bytes:
    """Return at most `limit` bytes of what was got: one read returns no more than has arrived by then."""
    content = bytearray()
    async with answer["Body"] as body:
        while len(content) < limit and (chunk := await body.read(min(CHUNK, limit - len(content)))):
            content += chunk
    return bytes(content)


@asynccontextmanager
async def opened(bucket: Bucket, store: str) -> AsyncIterator[Any]:
    """Open a client for a bucket; raises Refused when the SDK is not installed."""
    try:
        from aiobotocore.config import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
            AioConfig,
        )
        from aiobotocore.session import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
            get_session,
        )
    except ImportError as error:
        raise Refused(f"{store} in S3 need the extra: pip install 'dovecote[s3]'") from error
    making = get_session().create_client(
        "s3",
        endpoint_url=bucket.endpoint,
        region_name=bucket.region,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        config=AioConfig(
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "max_attempts": 3},
        ),
    )
    async with making as client:
        yield client
