"""The table of mutants follows the code: each fault can still be applied, and its tests exist."""

from __future__ import annotations

import pytest

from bench.mutant_table import MUTANTS, Mutant
from bench.mutants import apply_mutant
from source_trees import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied(mutant: Mutant) -> None:
    """Its old text occurs exactly once, the faulty file still compiles, and its test files exist."""
    text = (ROOT / mutant.file).read_text()
    faulty = apply_mutant(mutant, text)
    assert faulty != text
    compile(faulty, mutant.file, "exec")
    assert mutant.tests
    files = [name.partition("::")[0] for name in mutant.tests if name.startswith("tests/")]
    assert all((ROOT / name).is_file() for name in files)


def test_mutants_have_names_of_their_own() -> None:
    """A name chooses one mutant."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
