"""Which encodings of a response a client accepts."""

from __future__ import annotations

from aiohttp import hdrs, web

GZIP = "gzip"


def prefers_gzip(request: web.Request) -> bool:
    """Return whether a request gets compressed responses."""
    return accepts_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())))


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip, by its name or by `*`, with a weight above 0."""
    weights: dict[str, bool] = {}
    for part in accepted.lower().split(","):
        name, _, parameters = part.partition(";")
        weights[name.strip()] = not _is_zero(parameters)
    return weights.get(GZIP, weights.get("*", False))


def _is_zero(parameters: str) -> bool:
    name, _, weight = parameters.partition("=")
    return name.strip() == "q" and weight.strip().strip("0") in ("", ".")
