"""Decide which calls share a sandbox, and as which agent a sandbox uses credentials."""

from __future__ import annotations

from delivery.database.engine import Connection
from gateway.store.accounts import records
from gateway.store.turns.jobs import Job
from sandbox.config import SandboxConfig
from sandbox.labels import Owner, Scope, effective_scope
from sandbox.model import Network

_SCOPES_OF_ONE_AGENT = (Scope.AGENT, Scope.SESSION)


async def scope_for(connection: Connection, owner: Owner, config: SandboxConfig) -> Scope:
    """Return the scope of an owner's sandbox.

    A record that says nothing shares a reserved sandbox among the agents of a workspace. An agent that a
    credential names gets one of its own, so that no other agent can use the credential.
    """
    isolation: str | None = config.isolation if config.persistent else Scope.SESSION
    if isolation is None and await _has_own_credential(connection, owner, config):
        isolation = Scope.AGENT
    return effective_scope(isolation, workspace=owner.workspace, person=owner.person)


async def _has_own_credential(connection: Connection, owner: Owner, config: SandboxConfig) -> bool:
    """Return whether a credential names the agent, in a network in which credentials are used."""
    if Network(config.network.mode) is not Network.RESTRICTED:
        return False
    found = await records.list_by_kind(connection, owner.account, "credential")
    return any(owner.agent in one.config["agents"] for one in found)


def agent_of(owner: Owner) -> str:
    """Return the agent as which a sandbox uses credentials; none if agents share it."""
    return owner.agent if owner.scope in _SCOPES_OF_ONE_AGENT else ""


def owner_of_job(job: Job, person: str) -> Owner:
    """Return the owner of the sandbox of a job, before its scope is known."""
    return Owner(
        account=job.account,
        scope=Scope.SESSION,
        conversation=job.conversation,
        agent=job.agent,
        person=person,
        workspace=job.workspace,
    )
