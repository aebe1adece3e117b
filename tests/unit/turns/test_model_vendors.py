"""Which models may be configured: problems are reported before any call, with field, value and remedy."""

from __future__ import annotations

import pytest

from gateway.agents.model import Vendors, check, check_chain
from gateway.agents.model.models import with_api_path
from gateway.agents.registry import model_vendors
from gateway.config.setting_types import AgentSettings, VendorSettings
from gateway.records.errors import InvalidRecord
from gateway.records.kinds import validate as check_record

KEYS = Vendors(openai_api_key="sk-o", anthropic_api_key="sk-a", google_api_key="g-k")


@pytest.mark.parametrize("model", ["openai:gpt-x", "anthropic:claude-x", "google:gemini-x", "ollama:llama"])
def test_each_vendor_is_accepted_with_its_key(model: str) -> None:
    """A known vendor, a name and a key are enough."""
    assert check(model, KEYS) is None


@pytest.mark.parametrize("model", ["", "gpt-4", "openai:", "openai: ", "mistral:x", "OPENAI:x", ":x"])
def test_an_unknown_form_is_refused_with_the_known_ones(model: str) -> None:
    """Anything else is answered with the forms there are."""
    problem = check(model, KEYS)
    assert problem is not None
    assert f'agent.model is "{model}"' in problem
    assert '"openai:NAME"' in problem


@pytest.mark.parametrize(
    ("model", "variable"),
    [("openai:x", "OPENAI_API_KEY"), ("anthropic:x", "ANTHROPIC_API_KEY"), ("google:x", "GOOGLE_API_KEY")],
)
@pytest.mark.parametrize("key", [None, "", "  "])
def test_a_missing_or_blank_key_is_named(model: str, variable: str, key: str | None) -> None:
    """The variable to set is in the message; blank is as good as missing."""
    problem = check(model, Vendors(openai_api_key=key, anthropic_api_key=key, google_api_key=key))
    assert problem is not None
    assert f"{variable} is not set" in problem


def test_a_compatible_server_needs_no_key() -> None:
    """Servers of one's own often have none."""
    url = "http://127.0.0.1:9901/v1"
    assert check("openai:local", Vendors(trusted_base_urls=(url,)), url + "/") is None


@pytest.mark.parametrize("url", ["http://169.254.169.254/v1", "https://example.com/v1"])
def test_an_address_the_operator_did_not_name_gets_no_key(url: str) -> None:
    """An account's record cannot send the operator's key, or any request, somewhere else."""
    problem = check("openai:x", KEYS, url)
    assert problem is not None
    assert "the operator has not allowed this address" in problem


@pytest.mark.parametrize("url", ["http://127.0.0.1:11434/v1", "HTTP://127.0.0.1:11434/v1/"])
def test_a_key_of_one_vendor_is_not_sent_to_another_vendors_address(url: str) -> None:
    """Ollama's default address is trusted with Ollama's models, which have no key, and with no other."""
    problem = check("openai:x", KEYS, url)
    assert problem is not None
    assert "has not allowed this address for openai models" in problem
    assert check("ollama:x", KEYS, url) is None


def test_the_operators_address_is_for_the_vendor_it_serves() -> None:
    """An address that the operator gives for Ollama's models does not get OpenAI's key."""
    url = "http://10.0.0.1:11434/v1"
    vendors = Vendors(openai_api_key="sk-o", trusted_base_urls=(url,), trusted_vendor="ollama")
    assert check("openai:x", vendors, url) is not None
    assert check("ollama:x", vendors, url) is None


@pytest.mark.parametrize("vendor", ["openai", "anthropic", "google"])
def test_a_compatible_server_named_for_all_agents_needs_no_key(vendor: str) -> None:
    """The vendor's setting names a server of one's own, and is the only address of that vendor's models."""
    own = VendorSettings.model_validate({f"{vendor}_base_url": "http://127.0.0.1:9901"})
    vendors = model_vendors(own, AgentSettings())
    assert check(f"{vendor}:local", vendors) is None
    assert vendors.base_urls(vendor) == ("http://127.0.0.1:9901",)
    others = {"openai", "anthropic", "google"} - {vendor}
    assert all("_API_KEY is not set" in (check(f"{other}:x", vendors) or "") for other in others)


@pytest.mark.parametrize(
    ("named", "called"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434/v1"),
        ("http://gpu/ollama/v1", "http://gpu/ollama/v1"),
    ],
)
def test_an_ollama_server_may_be_named_by_its_host_alone(named: str, called: str) -> None:
    """OLLAMA_HOST has no path, and the OpenAI-compatible part lies under /v1."""
    assert with_api_path(named) == called


def test_an_address_must_be_a_url() -> None:
    """A base_url without a scheme is refused by name."""
    problem = check("openai:x", KEYS, "localhost:8000")
    assert problem is not None
    assert 'agent.base_url is "localhost:8000"' in problem


def test_keys_do_not_show() -> None:
    """Printing the settings shows no secret."""
    assert "sk-" not in repr(KEYS)
    assert "g-k" not in repr(KEYS)


def test_a_chain_is_checked_link_by_link() -> None:
    """Every model of a list is held to its own vendor; `base_url` counts for those it is meant for."""
    url = "http://127.0.0.1:9901/v1"
    vendors = Vendors(anthropic_api_key="sk-a", trusted_base_urls=(url,))
    assert check_chain(("openai:a", "anthropic:b", "ollama:c"), vendors, url) == ()
    (problem,) = check_chain(("anthropic:b", "google:g"), vendors, url)
    assert problem.startswith('agent.fallback is "google:g": GOOGLE_API_KEY is not set')


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"model": "mistral:x"}, "/config/model"),
        ({"model": "openai:"}, "/config/model"),
        ({"model": "openai:x", "fallback": ["ollama:y", "builtin:shell"]}, "/config/fallback/1"),
    ],
)
def test_a_record_with_an_unknown_form_of_model_is_refused(config: dict[str, object], where: str) -> None:
    """The problem points at the model that cannot be."""
    with pytest.raises(InvalidRecord) as refused:
        check_record("agent", config)
    assert [problem.pointer for problem in refused.value.problems] == [where]
