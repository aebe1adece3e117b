"""Put together the links with which people sign in to MCP servers."""

from __future__ import annotations

from contextlib import suppress

from delivery.deliveries.transactions import Transactions
from egress.policy import EgressPolicy
from gateway.infra.backing_services import BackingServices
from gateway.records.records import Records
from gateway.tools.mcp.sign_ins.links import PURPOSE, SignInLinks
from gateway.tools.mcp.sign_ins.stored_sign_ins import McpSignIns


def open_sign_in_links(backing: BackingServices, transactions: Transactions, records: Records) -> SignInLinks:
    """Return the links. Browsers reach the gateway at `public_url`, or else at the address it listens at."""
    settings = backing.settings

    def base_url() -> str:
        if settings.public_url:
            return settings.public_url.rstrip("/")
        with suppress(FileNotFoundError):
            return (settings.data_dir / "url").read_text()
        return f"http://{settings.host}:{settings.port}"

    return SignInLinks(
        database=backing.database,
        transactions=transactions,
        records=records,
        sign_ins=McpSignIns(
            backing.database,
            backing.vault,
            policy=EgressPolicy(allow=settings.egress_allow),
            base_url=base_url,
            alone_since=backing.sole_process_since,
        ),
        keys=backing.vault.keys_for(PURPOSE),
    )
