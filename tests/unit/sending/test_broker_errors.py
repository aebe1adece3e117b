"""Errors of JetStream become errors of deliveries, by their codes."""

from __future__ import annotations

import pytest

from delivery.broker.nats_client import error_for
from delivery.errors import AppendConflict, BrokerFull, BrokerRefused, BrokerUnreachable


@pytest.mark.parametrize(
    ("code", "description", "kind"),
    [
        (10008, "JetStream system temporarily unavailable", BrokerUnreachable),
        (10158, "duplicate message id is in process", BrokerUnreachable),
        (10071, "wrong last sequence: 3", AppendConflict),
        (10023, "insufficient resources", BrokerFull),
        (10054, "message size exceeds maximum allowed", BrokerRefused),
    ],
)
def test_each_code_has_its_error(code: int, description: str, kind: type[Exception]) -> None:
    """What passes by itself is worth a retry; what never passes is refused."""
    found = error_for("ev.1.a.b.e", {"code": 400, "err_code": code, "description": description})
    assert type(found) is kind
