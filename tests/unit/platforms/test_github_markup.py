"""CommonMark as GitHub gets it: no person is notified, and addresses are what they were."""

from __future__ import annotations

import pytest

from channels.github.send.markup import render
from channels.github.simulator.world import body_text

SPACE = "\u200b"


@pytest.mark.parametrize(
    "text",
    [
        "https://www.npmjs.com/package/@babel/core",
        "see (https://mastodon.example:8443/@ada/1) and **https://a.example/@ada**",
        "[core](https://www.npmjs.com/package/@babel/core)",
        "<https://www.npmjs.com/package/@babel/core>",
        "write to ada.l@example.com",
        "AT&T, &amp; and &lt;",
    ],
)
def test_addresses_stay_as_they_are(text: str) -> None:
    """GitHub finds no mention in a URL or an address of mail, and a space in it would break it."""
    assert render(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@ada and (@ada)", f"@{SPACE}ada and (@{SPACE}ada)"),
        ("and/@ada", f"and/@{SPACE}ada"),
        ("\u00e9@ada", f"\u00e9@{SPACE}ada"),
        ("&#64;ada &#x0040;ada &commat;ada", "&#64;ada &#x0040;ada &commat;ada"),
        ("@&#97;da", f"@{SPACE}ada"),
        ("https://@ada", f"https://@{SPACE}ada"),
        ("xhttps://a.example/@ada", f"xhttps://a.example/@{SPACE}ada"),
        ("[a](https://a.example/)@ada", f"a@{SPACE}ada"),
        ("https://a.example/`x`@ada", f"https://a.example/x@{SPACE}ada"),
    ],
)
def test_no_spelling_mentions_a_person(text: str, shown: str) -> None:
    """Entities are characters to GitHub, and only what it makes a link of is no text."""
    assert body_text(render(text)) == shown
