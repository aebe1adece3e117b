"""Report for `doctor` which functions may be invoked and whether the bucket can be used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from sandbox.aws_lambda.api import invoke, open_functions
from sandbox.aws_lambda.errors import AnswerLost
from sandbox.aws_lambda.sandbox_records import SandboxRecords
from sandbox.aws_lambda.settings import LambdaSettings
from sandbox.errors import SandboxError
from sandbox.labels import key_of
from sandbox.port import Capability
from sandbox.s3 import open_client

TIMEOUT_SECONDS = 15.0
FUNCTIONS = ("mount_net", "mount_nonet", "nomount_net", "nomount_nonet")


def capabilities(settings: LambdaSettings) -> Sequence[Capability]:
    """Query AWS once, in an event loop of its own, so that callers inside a loop can use it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _query(settings)).result()


async def _query(settings: LambdaSettings) -> Sequence[Capability]:
    detail = "a Firecracker virtual machine for each run" + (
        ", not shared between accounts"
        if settings.tenant_isolation
        else ", SHARED by accounts one after another"
    )
    isolation = Capability(name="isolation", present=settings.tenant_isolation, detail=detail)
    return [isolation, await _bucket(settings), *[one async for one in _functions(settings)]]


async def _bucket(settings: LambdaSettings) -> Capability:
    if not settings.bucket:
        return Capability(name="bucket", present=False, detail="no bucket: set [sandbox.lambda] bucket")
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), open_client(settings.store, "sandboxes") as objects:
            await SandboxRecords(objects, settings.store).list("doctor")
    except (SandboxError, TimeoutError) as error:
        return Capability(name="bucket", present=False, detail=str(error) or "the bucket does not answer")
    return Capability(
        name="bucket", present=True, detail=f"{settings.bucket}/{settings.prefix} can be listed"
    )


async def _functions(settings: LambdaSettings) -> AsyncIterator[Capability]:
    """Ask for each function whether we may invoke it; a DryRun runs nothing."""
    tenant = key_of("lambda-tenant", "doctor") if settings.tenant_isolation else ""
    async with open_functions(settings) as client:
        for field in FUNCTIONS:
            name = getattr(settings, field)
            if name is None:
                text = f"no function: set SANDBOX_FN_{field.upper()}"
                yield Capability(name=field, present=False, detail=text)
                continue
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await invoke(client, name, b"{}", tenant=tenant, kind="DryRun")
            except (SandboxError, AnswerLost, TimeoutError) as error:
                yield Capability(name=field, present=False, detail=str(error) or "lambda does not answer")
            else:
                yield Capability(name=field, present=True, detail=f"{name} may be invoked")
