"""Revision files of the database keep the content with which Git first has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from source_trees import ROOT

BASELINE = "d44aeb2590455113f61f0e6ff466fd621302911d"
"""The commit from which on no revision is edited; earlier ones were renumbered before a release."""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
FOLDER = "gateway/migrations/versions"


def test_no_revision_differs_from_its_first_commit() -> None:
    """Each revision is as it was in the commit that added it, or in the baseline if that has it."""
    if not _has_commit(ROOT, BASELINE):
        pytest.skip(f"this copy has no history back to {BASELINE}")
    assert not edited_revisions(ROOT, BASELINE), "never edit a revision: write a new one"


def edited_revisions(root: Path, baseline: str) -> set[str]:
    """Return the revisions that changed since they were added, or that the baseline has and `root` lacks."""
    kept = _blobs(_git(root, "ls-tree", "-r", baseline, "--", FOLDER), content=2)
    added = ("log", "-m", "--reverse", "--topo-order", "--no-renames", "--raw", "--no-abbrev", "--format=")
    later = _blobs(_git(root, *added, "--diff-filter=A", f"{baseline}..HEAD", "--", FOLDER), content=3)
    first = {**later, **kept}
    files = sorted(root.joinpath(FOLDER).glob("*.py"))
    hashes = _git(root, "hash-object", "--no-filters", *map(str, files)).split()
    current = {file.relative_to(root).as_posix(): digest for file, digest in zip(files, hashes, strict=True)}
    edited = {path for path, digest in current.items() if digest != first.get(path, digest)}
    return edited | (kept.keys() - current.keys())


def _blobs(listing: str, *, content: int) -> dict[str, str]:
    """Return the first hash of each path. `content` is the column that holds the hash."""
    found: dict[str, str] = {}
    for line in filter(None, listing.splitlines()):
        columns, _, path = line.partition("\t")
        found.setdefault(path, columns.split()[content])
    return found


def _has_commit(root: Path, commit: str) -> bool:
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=root, capture_output=True, check=False
    )
    return found.returncode == 0


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True, text=True).stdout


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Return a repository with one revision in its baseline, and a later one."""
    _git(tmp_path, "init", "-q")
    (tmp_path / FOLDER).mkdir(parents=True)
    _commit(tmp_path, "0001_initial.py", "one")
    _git(tmp_path, "tag", "baseline")
    _commit(tmp_path, "0002_second.py", "two")
    return tmp_path


def _commit(root: Path, name: str, text: str) -> None:
    (root / FOLDER / name).write_text(text)
    _git(root, "add", "-A")
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    _git(root, *who, "commit", "-q", "-m", f"Write {name}")


def test_added_revisions_are_accepted(history: Path) -> None:
    """New files are no edits, whether they are committed or not."""
    (history / FOLDER / "0003_third.py").write_text("three")
    assert edited_revisions(history, "baseline") == set()


@pytest.mark.parametrize("name", ["0001_initial.py", "0002_second.py"])
@pytest.mark.parametrize("is_committed", [False, True])
def test_an_edit_is_found(history: Path, name: str, *, is_committed: bool) -> None:
    """A revision that is edited after its first commit is named, in the working tree and in commits."""
    if is_committed:
        _commit(history, name, "other")
    (history / FOLDER / name).write_text("other")
    assert edited_revisions(history, "baseline") == {f"{FOLDER}/{name}"}


def test_a_deleted_revision_is_found(history: Path) -> None:
    """A revision of the baseline that is deleted or renamed is named."""
    (history / FOLDER / "0001_initial.py").unlink()
    assert edited_revisions(history, "baseline") == {f"{FOLDER}/0001_initial.py"}
