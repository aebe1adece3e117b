"""Links to sandboxes' ports: signed, for one sandbox, until a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.accounts import stream_tickets
from gateway.accounts.stream_tickets import StreamTickets
from gateway.accounts.vault import Vault
from gateway.accounts.view_links import PURPOSE, ViewLink, ViewLinks
from gateway.web.admin.sandboxes import ViewCreate

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
VAULT = Vault(["k" * 40])
LINKS = ViewLinks(keys=VAULT.keys_for(PURPOSE), public_url="https://bots.example/")


def token(url: str) -> str:
    """Return the signed part of a link."""
    assert url.startswith("https://bots.example/views/")
    return url.split("/")[4]


def test_a_link_is_valid_until_it_expires() -> None:
    """It says for whom and what it is, and nothing else passes for it."""
    url, expires = LINKS.issue("acc_1", "box_1", port=8080, minutes=60, now=NOW, key="key_1")
    text = token(url)
    assert expires == NOW + timedelta(hours=1)
    assert LINKS.verify(text, now=expires - timedelta(seconds=1)) == ViewLink(
        account="acc_1", key="key_1", sandbox="box_1", port=8080, expires=int(expires.timestamp())
    )
    assert LINKS.verify(text, now=expires) is None
    for at, letter in enumerate(text):
        changed = text[:at] + ("B" if letter == "A" else "A") + text[at + 1 :]
        assert LINKS.verify(changed, now=NOW) is None, changed
    assert LINKS.verify("", now=NOW) is None


def test_a_link_of_another_purpose_or_key_is_none() -> None:
    """Tickets of streams are no links, nor are links of another installation."""
    tickets = StreamTickets(keys=VAULT.keys_for(stream_tickets.PURPOSE))
    text, _ = tickets.issue("acc_1", "key_1", "cnv_1", now=NOW)
    assert LINKS.verify(text, now=NOW) is None
    other = ViewLinks(keys=Vault(["o" * 40]).keys_for(PURPOSE), public_url="https://bots.example")
    made, _ = other.issue("acc_1", "box_1", port=8080, minutes=60, now=NOW)
    assert LINKS.verify(token(made), now=NOW) is None


@pytest.mark.parametrize("body", [{"minutes": 0}, {"minutes": 1441}, {"port": 65536}, {"minutes": "5"}])
def test_a_link_has_bounds(body: dict[str, object]) -> None:
    """It is valid for a day at the most, and its port exists."""
    with pytest.raises(ValueError, match=next(iter(body))):
        ViewCreate.model_validate(body)
