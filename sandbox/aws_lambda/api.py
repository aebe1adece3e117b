"""Open a client of the Lambda API without retries, and invoke functions with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiobotocore.config import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    AioConfig,
)
from botocore.exceptions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from sandbox.aws_lambda.errors import AnswerLost, error_for, function_error
from sandbox.aws_lambda.settings import LambdaSettings
from sandbox.errors import ProviderUnauthorized, ProviderUnreachable
from sandbox.s3 import CONNECTIONS, open_aws_session

CONNECT_SECONDS = 10
READ_SECONDS_BEYOND = 10
"""Seconds beyond the functions' time-out until an answer counts as lost."""


@asynccontextmanager
async def open_functions(settings: LambdaSettings) -> AsyncIterator[Any]:
    """Open a client; the SDK's own retries are off, because a repeated Invoke is a second run."""
    store = settings.store
    opening = open_aws_session().create_client(
        "lambda",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        config=AioConfig(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=settings.function_seconds + READ_SECONDS_BEYOND,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 1},
        ),
    )
    async with opening as client:
        yield client


async def invoke(
    client: Any, function: str, payload: bytes, *, tenant: str, kind: str = "RequestResponse"
) -> bytes:
    """Invoke a function and return its answer; raises AnswerLost, FunctionTimedOut and SandboxError."""
    tenants = {"TenantId": tenant} if tenant else {}
    try:
        answer = await client.invoke(FunctionName=function, InvocationType=kind, Payload=payload, **tenants)
        content: bytes = await answer["Payload"].read()
    except ClientError as error:
        raise _translate(error, function) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise ProviderUnauthorized("no keys for lambda: set access_key and secret_key") from error
    except EndpointConnectionError as error:
        raise ProviderUnreachable(f"lambda cannot be reached: {error}") from error
    except (BotoCoreError, OSError, TimeoutError) as error:
        raise AnswerLost(f"lambda does not answer: {error}") from error
    if answer.get("FunctionError"):
        raise function_error(content, function)
    return content


def _translate(error: Any, function: str) -> Exception:
    details = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    return error_for(status, str(details.get("Code", "")), str(details.get("Message", "")), function)
