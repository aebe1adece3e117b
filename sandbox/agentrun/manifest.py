"""The manifest of the AgentRun provider; it does not open a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sandbox.agentrun.settings import AgentRunSettings
from sandbox.config import ConfigProblem, SandboxConfig, unsupported_options
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_TEMPLATE_SETS = "the operator's template defines it"
_UNSUPPORTED = {
    "image": _TEMPLATE_SETS,
    "template": "the operator names one for each network mode",
    "snapshot": "sandboxes begin from the operator's template",
    "persistent_home": "HOME is kept as long as the sandbox lives, at most six hours",
    "auto_archive_seconds": "there is nothing to archive",
}


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from unsupported_options(config, "agentrun", _UNSUPPORTED)
    if config.network.mode == "restricted":
        yield ConfigProblem(
            pointer="/network/mode",
            detail="'restricted' is not possible on agentrun: use 'deny-all' or 'allow-all'",
        )


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    from sandbox.agentrun.provider import open_provider

    return open_provider(settings, context)


def _capabilities(settings: AgentRunSettings) -> Sequence[Capability]:
    has_key = settings.access_key_id is not None and settings.access_key_secret is not None
    has_account = settings.account_id is not None or settings.data_url is not None
    templates = {"allow-all": settings.template, "deny-all": settings.private_template}
    usable = [mode for mode, name in templates.items() if name is not None]
    return (
        Capability(
            name="key",
            present=has_key,
            detail="a key is set"
            if has_key
            else "no key: set AGENTRUN_ACCESS_KEY_ID and AGENTRUN_ACCESS_KEY_SECRET",
        ),
        Capability(
            name="account",
            present=has_account,
            detail="the account is set" if has_account else "no account: set AGENTRUN_ACCOUNT_ID",
        ),
        Capability(
            name="templates",
            present=bool(usable),
            detail=f"network modes with a template: {', '.join(usable)}"
            if usable
            else "no template: set template and private_template of [sandbox.agentrun]",
        ),
    )


plugin = ProviderPlugin(
    name="agentrun",
    title="Alibaba Cloud AgentRun, sandboxes of Function Compute",
    features=frozenset({Feature.JOBS, Feature.PERSISTENT, Feature.SYNCS_WORKSPACE}),
    resources=ResourceSupport.none(f"{_TEMPLATE_SETS}: leave it out"),
    settings=AgentRunSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
)
