"""docs/guide/configuration.md lists exactly the settings of the model."""

from __future__ import annotations

import pytest

from gateway.config.sources import VENDOR_VARIABLES
from scripts.settings_table import PAGE, with_table


def test_the_table_is_that_of_the_settings() -> None:
    """Each key has its default, its variable and its description from the model."""
    text = PAGE.read_text()
    assert with_table(text) == text, "run python -m scripts.reference"


def test_a_wrong_row_is_replaced_and_the_words_around_it_stay() -> None:
    """A default that is wrong, a setting without a row and a row without a setting do not last."""
    text = PAGE.read_text()
    line = next(line for line in text.splitlines() if line.startswith("| `port`"))
    for wrong in (line.replace("8080", "9090"), "", f"{line}\n| `gone` | none | `DOVECOTE_GONE` | x |"):
        without = text.replace(f"{line}\n", f"{wrong}\n" if wrong else "")
        assert without != text
        assert with_table(without) == text


def test_a_page_without_the_table_is_refused() -> None:
    """The table has one place; nothing is guessed."""
    with pytest.raises(ValueError, match="in one table"):
        with_table("# Configuration\n")


def test_every_vendors_variable_is_documented() -> None:
    """The document lists each external variable that is read."""
    text = PAGE.read_text()
    assert [name for name in VENDOR_VARIABLES if f"`{name}`" not in text] == []
