"""The Lambda provider: one of four functions for each sandbox, by its workspace and its network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sandbox.aws_lambda.api import open_functions
from sandbox.aws_lambda.invocation import Invocations, RunRequest
from sandbox.aws_lambda.sandbox import LambdaSandbox
from sandbox.aws_lambda.sandbox_records import SandboxRecords
from sandbox.aws_lambda.settings import LambdaSettings
from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxGone
from sandbox.labels import key_of
from sandbox.model import Network, SandboxId, SandboxSpec
from sandbox.port import Provider, ProviderContext, Sandbox
from sandbox.s3 import open_client

NO_RESERVATION = (
    "persistent: true is not possible on lambda, which keeps nothing running between calls: use persistent:"
    " false, or a sandbox of another provider, such as docker, kubernetes or e2b"
)


class LambdaProvider(Provider):
    """Records sandboxes in the bucket, and runs their commands in functions."""

    def __init__(
        self, settings: LambdaSettings, context: ProviderContext, functions: Any, objects: Any
    ) -> None:
        self._settings = settings
        self._context = context
        self._records = SandboxRecords(objects, settings.store)
        self._invocations = Invocations(
            functions, objects, settings.store, url_seconds=settings.function_seconds
        )

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of the label; record one if there is none."""
        self._check(spec)
        self._context.checkpoint("sandbox.create")
        return self._sandbox(await self._records.create(spec.label), spec)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox; raises SandboxGone."""
        self._check(spec)
        await self._records.check(sandbox_id)
        return self._sandbox(sandbox_id, spec)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox's files, which ends a command that runs there, then its record. Idempotent."""
        try:
            await self._records.check(sandbox_id)
        except SandboxGone:
            return
        function = self._settings.mount_nonet or self._settings.mount_net
        if function is not None:
            await self._invocations.run(
                RunRequest(
                    function=function,
                    tenant=self._tenant("removal"),
                    namespace="removal",
                    directory=sandbox_id,
                    seconds=self._settings.function_seconds,
                    remove=True,
                )
            )
        await self._records.delete(sandbox_id)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the sandboxes with a record."""
        return await self._records.list(label_prefix)

    def _sandbox(self, sandbox_id: SandboxId, spec: SandboxSpec) -> LambdaSandbox:
        request = RunRequest(
            function=function_for(self._settings, spec),
            tenant=self._tenant(spec.account),
            namespace=spec.namespace,
            directory=sandbox_id if spec.workspace is not None else "",
            seconds=self._settings.function_seconds,
        )
        return LambdaSandbox(
            sandbox_id, spec, invocations=self._invocations, records=self._records, request=request
        )

    def _tenant(self, account: str) -> str:
        return key_of("lambda-tenant", account) if self._settings.tenant_isolation else ""

    def _check(self, spec: SandboxSpec) -> None:
        if spec.persistent:
            raise FeatureUnsupported(NO_RESERVATION)
        if spec.network is Network.RESTRICTED:
            raise FeatureUnsupported("lambda has no network of named domains: use deny-all or allow-all")
        if spec.memory_mb > self._settings.memory_mb:
            raise ProviderRefused(
                f"memoryLimit {spec.memory_mb} is more than the functions have: at most"
                f" {self._settings.memory_mb} MB ([sandbox.lambda] memory_mb)"
            )
        if not spec.namespace.isalnum():
            raise ProviderRefused("the namespace must consist of letters and digits")
        for name, value in spec.env.items():
            if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
                raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")
        function_for(self._settings, spec)


def function_for(settings: LambdaSettings, spec: SandboxSpec) -> str:
    """Return the function for a sandbox's workspace and network; raises ProviderRefused if it is not set."""
    mount = "mount" if spec.workspace is not None else "nomount"
    net = "net" if spec.network is Network.ALLOW_ALL else "nonet"
    name: str | None = getattr(settings, f"{mount}_{net}")
    if name is None:
        variable = f"SANDBOX_FN_{mount}_{net}".upper()
        raise ProviderRefused(
            f"no function for this sandbox: set {variable} or [sandbox.lambda] {mount}_{net}"
        )
    return name


@asynccontextmanager
async def open_provider(settings: LambdaSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Open the clients of Lambda and of the bucket."""
    if not settings.bucket:
        raise ProviderRefused(
            "lambda needs a bucket: set [sandbox.lambda] bucket to the stack's SandboxBucket"
        )
    async with (
        open_functions(settings) as functions,
        open_client(settings.store, "sandboxes on lambda") as objects,
    ):
        yield LambdaProvider(settings, context, functions, objects)
