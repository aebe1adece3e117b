"""Open the egress proxies of sandboxes whose network is restricted."""

from __future__ import annotations

from contextlib import AsyncExitStack

from delivery.fair_gate import FairGate
from delivery.webhooks.egress import fair_resolver
from gateway.environments.credentials import Credentials
from gateway.infra.backing_services import BackingServices
from gateway.infra.egress_authority import trust_opener
from gateway.infra.egress_sockets import EgressOptions, EgressSockets
from gateway.records.records import Records

CONNECTIONS = 512
"""Connections of sandboxes that this process serves at once; accounts share them fairly."""


async def open_egress(backing: BackingServices, records: Records, stack: AsyncExitStack) -> EgressSockets:
    """Return the egress sockets of this process; they are closed with the stack."""
    settings = backing.settings
    options = EgressOptions(
        resolver=fair_resolver(),
        places=FairGate(settings.pool(CONNECTIONS)),
        private=settings.sandbox.allow.private_networks,
        open_trust=trust_opener(settings.data_dir / "egress", backing.vault),
        signer=Credentials(backing.database, records).signer,
    )
    return await stack.enter_async_context(EgressSockets(options).serving())
