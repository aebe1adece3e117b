"""Turns that are claimed in the transaction that queues them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from delivery.broker.keyed_worker import KeyedWorker, ReservedKey
from delivery.deliveries.immediate import ImmediateWork, TurnClaims
from delivery.deliveries.transactions import Transaction
from gateway.turns.claim import Claim, TurnClaimer

RunFirst = Callable[[Claim, str], Awaitable[None]]
"""Run a claimed turn of a conversation, and then those that follow it."""


class ImmediateTurn(ImmediateWork):
    """A turn that is claimed by a transaction."""

    step = "turn.claim"

    def __init__(self, place: ReservedKey, claim: Claim, claimer: TurnClaimer, run: RunFirst) -> None:
        self._place = place
        self._claim = claim
        self._claimer = claimer
        self._run = run

    def start(self) -> None:
        """Run the turn."""
        self._place.start(partial(self._run, self._claimer.committed(self._claim)))

    def release(self) -> None:
        """Give the place back."""
        self._place.release()


class ImmediateTurns(TurnClaims):
    """Claims turns for a worker whose leases no other process can hold."""

    def __init__(self, worker: KeyedWorker, claimer: TurnClaimer, run: RunFirst) -> None:
        self._worker = worker
        self._claimer = claimer
        self._run = run

    async def claim(self, tx: Transaction, conversation: str, *, account: str) -> ImmediateWork | None:
        """Claim the next turn of a conversation if none of its turns runs, and a place is free."""
        place = self._worker.reserve(account, conversation)
        if place is None:
            return None
        try:
            claim = await self._claimer.claim_within(tx, conversation)
        except BaseException:
            place.release()
            raise
        if claim is None:
            place.release()
            return None
        return ImmediateTurn(place, claim, self._claimer, self._run)
