"""Work that a transaction claims for this process, so that it starts right after the commit.

Usually a transaction wakes a worker, which then claims the work in a transaction of its own. A process that
can acquire the lease of the work without the broker, and has a free place for it, claims it in the
transaction that creates it. A crash after the commit is then the crash of a claimed turn or of an attempt.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from delivery.database.engine import Connection
from delivery.deliveries.ordering import is_urgent
from delivery.deliveries.store import NewDelivery


class ImmediateWork(Protocol):
    """Claimed work. Exactly one of `start` and `release` is called, in the task of the transaction.

    `step` names the fault points of the claim, `<step>.before_commit` and `<step>.after_commit`.
    """

    step: str

    @abstractmethod
    def start(self) -> None:
        """Start the work: the transaction is committed."""

    @abstractmethod
    def release(self) -> None:
        """Give the place back: the transaction was rolled back, or it is unknown whether it was committed.

        A task that is cancelled while its transaction is being written does not know it.
        """


class DeliveryClaims(Protocol):
    """Inserts new deliveries of one kind as being sent."""

    @abstractmethod
    async def claim(self, connection: Connection, planned: NewDelivery) -> ImmediateWork | None:
        """Insert a delivery and its first attempt, and return its work.

        None: nothing was inserted, because others are sent to its destination first or there is no place.
        """


async def claim_first(
    claims: DeliveryClaims, connection: Connection, planned: Sequence[NewDelivery]
) -> dict[str, ImmediateWork]:
    """Claim the delivery that each destination gets first; return the work by the ids of those claimed."""
    first: dict[str, NewDelivery] = {}
    for one in sorted(planned, key=lambda one: not is_urgent(one.sequence)):
        first.setdefault(one.destination, one)
    works = {one.id: await claims.claim(connection, one) for one in first.values()}
    return {delivery: work for delivery, work in works.items() if work is not None}
