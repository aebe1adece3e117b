"""The files that the checks of the repository read."""

from __future__ import annotations

import pytest

from source_trees import ROOT, files_not_ignored, files_of_git


def test_the_files_are_the_same_without_git() -> None:
    """What `.gitignore` does not name is what git lists."""
    names = files_of_git()
    if names is None:
        pytest.skip("git is not installed, or this copy of the repository is no clone")
    assert set(files_not_ignored()) == {name for name in names if (ROOT / name).is_file()}
