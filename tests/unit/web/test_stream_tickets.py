"""Tickets of event streams: ours hold for minutes, all others never do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.accounts.stream_tickets import LIFETIME, PURPOSE, StreamTickets
from gateway.accounts.vault import Vault

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TICKETS = StreamTickets(keys=Vault(["k" * 40]).keys_for(PURPOSE))
TEXT, EXPIRES = TICKETS.issue("acc_1", "key_1", "cnv_1", now=NOW)


def test_a_ticket_names_what_it_was_issued_for_until_it_expires() -> None:
    """It has the account, the key and the conversation, and ends at the stated time."""
    ticket = TICKETS.verify(TEXT, now=NOW)
    assert ticket is not None
    assert (ticket.account, ticket.key, ticket.conversation) == ("acc_1", "key_1", "cnv_1")
    assert EXPIRES - NOW == LIFETIME <= timedelta(minutes=15)
    assert TICKETS.verify(TEXT, now=EXPIRES - timedelta(seconds=1)) is not None
    assert TICKETS.verify(TEXT, now=EXPIRES) is None


def test_no_letter_of_a_ticket_can_be_changed() -> None:
    """Any other letter, one more and one less are refused."""
    for place, letter in enumerate(TEXT):
        for other in ("", letter * 2, chr(ord(letter) ^ 1), "\x00", "é"):
            assert TICKETS.verify(TEXT[:place] + other + TEXT[place + 1 :], now=NOW) is None


@given(st.text(max_size=60), st.text(max_size=60))
def test_nothing_else_is_valid(payload: str, signature: str) -> None:
    """Garbage is refused, and never an error."""
    assert TICKETS.verify(f"{payload}.{signature}", now=NOW) is None


def test_tickets_outlive_a_change_of_keys() -> None:
    """A ticket of an older key is valid while that key is in the ring."""
    rotated = StreamTickets(keys=Vault(["n" * 40, "k" * 40]).keys_for(PURPOSE))
    changed = StreamTickets(keys=Vault(["n" * 40]).keys_for(PURPOSE))
    assert rotated.verify(TEXT, now=NOW) is not None
    assert changed.verify(TEXT, now=NOW) is None
