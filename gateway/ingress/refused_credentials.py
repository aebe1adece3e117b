"""Notes which bots' credentials their platforms refuse, as sends find it out."""

from __future__ import annotations

from collections.abc import Callable

from channels.message import Address
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink


class CredentialCheckingSink(Sink):
    """Calls `note` with an address and why its bot's credentials are refused; "" once they are accepted."""

    def __init__(self, inner: Sink, note: Callable[[Address, str], None]) -> None:
        self._inner = inner
        self._note = note

    async def send(self, delivery: Delivery) -> Outcome:
        """Send once."""
        outcome = await self._inner.send(delivery)
        if outcome.unauthorized:
            self._note(Address.decode(delivery.target), outcome.detail)
        elif outcome.kind is OutcomeKind.DELIVERED and outcome.platform_id:
            self._note(Address.decode(delivery.target), "")
        return outcome
