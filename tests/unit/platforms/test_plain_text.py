"""CommonMark on platforms that show plain text: each word and each address once."""

from __future__ import annotations

import pytest

from channels.inbox.plain import render


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("see [](https://x.test/a), please", "see https://x.test/a, please"),
        ("see [the page](https://x.test/a)", "see the page (https://x.test/a)"),
        ("see [https://x.test](https://x.test/)", "see https://x.test/"),
        ("write to <ada@x.test>", "write to ada@x.test"),
        ("[write to Ada](mailto:ada@x.test)", "write to Ada (ada@x.test)"),
    ],
)
def test_an_address_is_shown_once(markdown: str, shown: str) -> None:
    """A link without words is its address, and one whose words are the address does not repeat it."""
    assert render(markdown) == shown
