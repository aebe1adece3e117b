"""Validate configured models, and hold the vendors' keys and endpoints. Imports no SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, get_args

from egress.urls import Origin, endpoint, origin_of
from sandbox.errors import install_command

Vendor = Literal["openai", "anthropic", "google", "ollama"]

FORMS = '"openai:NAME", "anthropic:NAME", "google:NAME", "ollama:NAME", "entry:NAME" or "builtin:shell"'
OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com"
GOOGLE = "https://generativelanguage.googleapis.com"
LIBRARY_VENDORS = frozenset({"google"})
"""Vendors whose models are used through pydantic-ai."""

KEY_VARIABLES: dict[str, str] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GOOGLE_API_KEY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendors:
    """Keys and endpoints of the vendors' services, as the operator configured them.

    Each key is bound to its vendor and to the origins that the operator named for that vendor. An agent
    record with another address is refused, because that server would receive the operator's key.
    `trusted_base_urls` are for the models of `trusted_vendor`; None: for each vendor that takes a URL.
    `retries` is how often
    the vendor's SDK retries with the last model of a failover list (or the only one); the others are tried
    once.
    """

    openai_api_key: str | None = field(default=None, repr=False)
    openai_base_url: str = OPENAI
    anthropic_api_key: str | None = field(default=None, repr=False)
    anthropic_base_url: str = ANTHROPIC
    google_api_key: str | None = field(default=None, repr=False)
    google_base_url: str = GOOGLE
    ollama_base_url: str = "http://127.0.0.1:11434/v1"
    trusted_base_urls: tuple[str, ...] = ()
    trusted_vendor: Vendor | None = None
    retries: int = 2

    def api_key(self, vendor: str) -> str | None:
        """Return the configured key of a vendor; Ollama needs none."""
        keys = {
            "openai": self.openai_api_key,
            "anthropic": self.anthropic_api_key,
            "google": self.google_api_key,
        }
        return keys.get(vendor)

    def base_urls(self, vendor: str) -> tuple[str, ...]:
        """Return the URLs that the operator named for a vendor."""
        own = {
            "openai": self.openai_base_url,
            "anthropic": self.anthropic_base_url,
            "google": self.google_base_url,
            "ollama": self.ollama_base_url,
        }[vendor]
        takes_url = vendor in {"openai", "ollama"} and self.trusted_vendor in {None, vendor}
        return (own, *(self.trusted_base_urls if takes_url else ()))

    def is_trusted(self, vendor: str, base_url: str) -> bool:
        """Return whether the operator named this address for a vendor's models."""
        return endpoint(base_url) in {endpoint(url) for url in self.base_urls(vendor)}

    def bound_keys(self) -> Mapping[str, frozenset[Origin]]:
        """Return each key with the origins to which it may be sent."""
        bound: dict[str, frozenset[Origin]] = {}
        for vendor in KEY_VARIABLES:
            key = (self.api_key(vendor) or "").strip()
            if key:
                origins = frozenset(origin_of(url) for url in self.base_urls(vendor))
                bound[key] = bound.get(key, frozenset()) | origins
        return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedModel:
    """A parsed model name: `openai:gpt-x` is vendor `openai`, name `gpt-x`."""

    vendor: Vendor
    name: str


class UnusableModel(Exception):
    """A model cannot be used as configured; the message names the field, its value and the remedy."""


def parse(model: str, field: str = "agent.model") -> ParsedModel:
    """Parse a configured model; `field` is its setting. Raises UnusableModel."""
    vendor, _, name = model.partition(":")
    for known in get_args(Vendor):
        if vendor == known and name.strip():
            return ParsedModel(vendor=known, name=name.strip())
    raise UnusableModel(f'{field} is "{model}": use {FORMS}')


def check(
    model: str, vendors: Vendors, base_url: str | None = None, *, field: str = "agent.model"
) -> str | None:
    """Return the problem of a configured model, or None; calls no network and loads no SDK."""
    try:
        require(model, vendors, base_url, field)
    except UnusableModel as error:
        return str(error)
    return None


def check_chain(
    models: Sequence[str], vendors: Vendors, base_url: str | None, *, table: str = "agent"
) -> tuple[str, ...]:
    """Return the problems of an agent's model and its fallbacks, one line each, with the table's name."""
    found = [
        check(
            model,
            vendors,
            base_url_for(model, models, base_url),
            field=f"{table}.fallback" if place else f"{table}.model",
        )
        for place, model in enumerate(models)
    ]
    return tuple(problem for problem in found if problem is not None)


def base_url_for(model: str, models: Sequence[str], base_url: str | None) -> str | None:
    """Return the agent's `base_url` for the models it is meant for: OpenAI's, or Ollama's without those."""
    vendor = "openai:" if any(one.startswith("openai:") for one in models) else "ollama:"
    return base_url if model.startswith(vendor) else None


def require(model: str, vendors: Vendors, base_url: str | None, field: str = "agent.model") -> ParsedModel:
    """Return the parsed model if all it needs is configured; raises UnusableModel."""
    parsed = parse(model, field)
    if parsed.vendor in LIBRARY_VENDORS:
        require_library(field, model)
    if base_url is not None:
        _require_trusted(parsed.vendor, vendors, base_url, field.rpartition(".")[0])
    if not _has_key(parsed.vendor, vendors, base_url):
        variable = KEY_VARIABLES[parsed.vendor]
        raise UnusableModel(f'{field} is "{model}": {variable} is not set; set it, or choose another model')
    return parsed


def _require_trusted(vendor: Vendor, vendors: Vendors, base_url: str, table: str) -> None:
    try:
        trusted = vendors.is_trusted(vendor, base_url)
    except ValueError as error:
        raise UnusableModel(
            f'{table}.base_url is "{base_url}": it {error}; give an http:// or https:// URL'
        ) from None
    if not trusted:
        raise UnusableModel(
            f'{table}.base_url is "{base_url}": the operator has not allowed this address for {vendor} '
            "models; name it as [agent] base_url in dovecote.toml, or leave it out"
        )


def require_library(field: str, model: str) -> None:
    """Refuse to go on without the optional library; raises UnusableModel."""
    if find_spec("pydantic_ai") is None:
        raise UnusableModel(
            f'{field} is "{model}": its vendor needs the `model` extra: run {install_command("model")}'
        )


def _has_key(vendor: Vendor, vendors: Vendors, base_url: str | None) -> bool:
    """Return whether a vendor has its key; servers of one's own that speak its protocol often need none."""
    is_own_server = base_url is not None or vendors.base_urls(vendor)[0] not in {OPENAI, ANTHROPIC, GOOGLE}
    return is_own_server or bool((vendors.api_key(vendor) or "").strip())
