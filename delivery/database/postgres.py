"""Connections to PostgreSQL: a server that is gone without a word is noticed within half a minute.

By default Linux waits a quarter of an hour for the acknowledgement of a machine that disappeared, and checks
an idle connection after two hours. The parameters are those of libpq (PostgreSQL's documentation, "Parameter
Key Words").
"""

from __future__ import annotations

from sqlalchemy.engine import URL, make_url

FAILURE_DETECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
"""In seconds, but `tcp_user_timeout`, the longest wait for an acknowledgement, in milliseconds."""


def with_failure_detection(url: URL | str) -> URL:
    """Return the URL of a database with these parameters, unless it names them; SQLite has none."""
    place = make_url(url)
    if place.get_backend_name() == "sqlite":
        return place
    return place.update_query_dict({**FAILURE_DETECTION, **place.query})
