"""Open sessions of the AWS SDK, and buckets of S3-compatible stores, and translate their errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from sandbox.errors import (
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
    install_command,
)

CONNECTIONS = 32
CHUNK = 1 << 20
READ_SECONDS = 20.0
"""Seconds without a byte after which a store counts as hanging."""
ATTEMPTS = 3
"""How often a request is sent at most: a call of a hanging store fails within a minute or so."""
_NOT_FOUND = frozenset({"NoSuchKey", "404", "KeyTooLongError", "InvalidURI", "XMinioInvalidObjectName"})
_NO_BUCKET = frozenset({"NoSuchBucket"})
_FORBIDDEN = frozenset(
    {
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "401",
        "403",
    }
)
_EXISTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_BUSY = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"})
_BUSY_STATUS = frozenset({408, 425, 429})
"""The statuses below 500 that ask a client to try again; every store has codes of its own."""
_SERVER_ERROR = 500
_NOT_IMPLEMENTED = 501
_REDIRECTION = 300
_HAS_ONE_OF = {
    "ListObjectsV2": frozenset({"IsTruncated", "KeyCount", "MaxKeys", "Name"}),
    "PutObject": frozenset({"ETag"}),
    "GetObject": frozenset({"ETag"}),
    "HeadObject": frozenset({"ETag"}),
    "CopyObject": frozenset({"CopyObjectResult"}),
    "UploadPart": frozenset({"ETag"}),
    "CreateMultipartUpload": frozenset({"UploadId"}),
}
"""What a store's success has, by operation: a listing of nothing too, and an object without content."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where objects are stored; without keys the SDK looks for credentials itself."""

    bucket: str
    prefix: str = "dovecote/"
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None

    def key(self, name: str) -> dict[str, str]:
        """Return the parameters that identify an object in a call."""
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{name}"}


class NotAStore(Exception):
    """What answers at the endpoint is no S3-compatible store, or not the one that has the bucket."""


class ObjectNotFound(LookupError):
    """The object does not exist."""


@contextmanager
def translate_errors(name: str, store: str) -> Iterator[None]:
    """Translate the SDK's errors; `store` names what is stored there. Raises ObjectNotFound too."""
    from aiohttp import ClientPayloadError
    from botocore.exceptions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    try:
        yield
    except ClientError as error:
        raise _translate_error(error, name, store) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise ProviderUnauthorized(f"no keys for the store of {store}: set access_key, secret_key") from error
    except NotAStore as error:
        raise ProviderRefused(f"the store of {store} {error}: correct endpoint and region") from error
    except (BotoCoreError, ClientPayloadError, OSError, TimeoutError) as error:
        raise ProviderUnreachable(f"the store of {store} does not answer: {error}") from error


def _translate_error(error: Any, name: str, store: str) -> SandboxError | ObjectNotFound:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _NOT_FOUND:
        return ObjectNotFound(name)
    if code in _NO_BUCKET:
        return ProviderRefused(f"the store of {store} has no such bucket: {error}")
    if code in _FORBIDDEN:
        return ProviderUnauthorized(f"the store of {store} rejects our keys: {error}")
    if code in _BUSY or _may_pass(status):
        return ProviderUnreachable(f"the store of {store} does not answer: {error}")
    return ProviderRefused(f"the store of {store} rejects the request: {error}")


def _may_pass(status: int) -> bool:
    """Return whether a later attempt may get another answer than this HTTP status."""
    return status in _BUSY_STATUS or (status >= _SERVER_ERROR and status != _NOT_IMPLEMENTED)


async def put_if_absent(client: Any, key: dict[str, str], body: bytes, store: str) -> bool:
    """Create an object; return False, and leave it as it is, if it exists."""
    from botocore.exceptions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        ClientError,
    )

    with translate_errors(key["Key"], store):
        try:
            await client.put_object(**key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _EXISTS:
                return False
            raise
    return True


async def read_body(response: Any, limit: int) -> bytes:
    """Return at most `limit` bytes of a response body; a single read may return fewer than have been sent."""
    content = bytearray()
    async with response["Body"] as body:
        while len(content) < limit and (chunk := await body.read(min(CHUNK, limit - len(content)))):
            content += chunk
    return bytes(content)


def open_aws_session() -> Any:
    """Return a session of the AWS SDK, with credentials of its own.

    All sessions share the SDK's descriptions of services. Reading them would block the event loop for about
    0.1 s for each client.
    """
    from aiobotocore.session import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        get_session,
    )

    session = get_session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def _loader(data_path: str | None) -> Any:
    from botocore.loaders import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        create_loader,
    )

    return create_loader(data_path)


@asynccontextmanager
async def open_client(
    bucket: Bucket, store: str, *, read_seconds: float = READ_SECONDS
) -> AsyncIterator[Any]:
    """Open a client for a bucket; raises ProviderRefused if the SDK is not installed."""
    try:
        from aiobotocore.config import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
            AioConfig,
        )

        session = open_aws_session()
    except ImportError as error:
        raise ProviderRefused(f"{store} in S3 need the extra: run {install_command('s3')}") from error
    opening = session.create_client(
        "s3",
        endpoint_url=bucket.endpoint,
        region_name=bucket.region,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        config=AioConfig(
            signature_version="s3v4",
            connect_timeout=10,
            read_timeout=read_seconds,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        ),
    )
    async with opening as client:
        client.meta.events.register_first("needs-retry.s3.HeadBucket", _refuse_redirect)
        for operation in _HAS_ONE_OF:
            client.meta.events.register(f"after-call.s3.{operation}", _refuse_other_page)
        yield client


def _refuse_redirect(response: Any, **_of_event: Any) -> None:
    """Raise NotAStore if the question for the bucket's region is answered with a redirect and no region.

    The SDK asks it after any redirect, at the same address, and would repeat it without end.
    """
    http = response[0] if response is not None else None
    if http is not None and http.status_code in _REDIRECTS and "x-amz-bucket-region" not in http.headers:
        raise NotAStore(f"redirects (HTTP {http.status_code}) and names no region")


def _refuse_other_page(http_response: Any, parsed: Any, model: Any, **_of_event: Any) -> None:
    """Raise NotAStore for a success that no store answers, such as the page of a console or of a sign-in.

    The SDK takes such a page for an empty bucket or a stored file, and a sync would delete working copies.
    """
    if http_response.status_code < _REDIRECTION and _HAS_ONE_OF[model.name].isdisjoint(parsed):
        raise NotAStore(f"answers {model.name} with something else")
