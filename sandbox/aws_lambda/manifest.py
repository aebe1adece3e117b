"""The manifest of the Lambda provider; it does not import the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sandbox.aws_lambda.settings import LambdaSettings
from sandbox.config import ConfigProblem, SandboxConfig, unsupported_options
from sandbox.errors import ProviderRefused, install_command
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_EXTRA = f"the lambda provider needs its extra: run {install_command('lambda')}"
_FUNCTION_SETS = "the functions of the stack set it"
_UNSUPPORTED = {
    "image": f"{_FUNCTION_SETS}: SANDBOX_IMAGE of deploy/lambda",
    "template": f"{_FUNCTION_SETS}: SANDBOX_IMAGE of deploy/lambda",
    "snapshot": "nothing is kept between turns except the workspace",
    "persistent_home": "HOME is kept during a turn and deleted with the sandbox",
    "auto_archive_seconds": "there is nothing to archive",
}
MAX_TIMEOUT_SECONDS = 300
MAX_MEMORY_MB = 1024


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from unsupported_options(config, "lambda", _UNSUPPORTED)
    if config.network.mode == "restricted":
        yield ConfigProblem(
            pointer="/network/mode",
            detail="'restricted' is not possible on lambda: use 'deny-all' or 'allow-all'",
        )


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    try:
        from sandbox.aws_lambda.provider import open_provider
    except ImportError as error:
        raise ProviderRefused(f"{_EXTRA} ({error})") from error
    return open_provider(settings, context)


def _capabilities(settings: Any) -> Sequence[Capability]:
    try:
        from sandbox.aws_lambda.capabilities import capabilities
    except ImportError as error:
        return [Capability(name="isolation", present=False, detail=f"{_EXTRA} ({error})")]
    return capabilities(settings)


plugin = ProviderPlugin(
    name="lambda",
    title="Functions of AWS Lambda",
    features=frozenset({Feature.SYNCS_WORKSPACE}),
    resources=ResourceSupport(
        memory_limit=None,
        cpu="Lambda derives it from the memory: leave it out",
        memory_gb="use memoryLimit, in MB, at most 1024",
        disk_gb=f"{_FUNCTION_SETS}: leave it out",
        persistent_disk_gb="the file system has no size: leave it out",
    ),
    settings=LambdaSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
    max_timeout=MAX_TIMEOUT_SECONDS,
    max_memory_mb=MAX_MEMORY_MB,
)
