"""The documentation: links and anchors that exist, a complete table of contents, a current reference."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from scripts.doc_links import ROOT, anchors, broken_links, links, pages, slugify
from scripts.reference import PAGE, reference
from source_trees import tracked

NAV = re.compile(r"^ +- [^:\n]+: (\S+\.md)$", re.MULTILINE)
FENCE = re.compile(r"^ *(```+|~~~+)")
UNSHOWN = re.compile(r"(?<=\])\([^)]*\)|<?https?://\S+|<!--.*?-->")
"""Targets of links, addresses and comments, which do not count towards the length of a line."""

PYTHON = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RUFF = Path(sys.executable).with_name("ruff")

MAX_LINE = 100
MAX_CELL_WORDS = 20


def test_every_link_leads_somewhere() -> None:
    """A link between pages names a file, and an anchor that a heading of it makes."""
    assert broken_links() == []


def test_a_link_leads_to_a_file() -> None:
    """The site has files and no listings of folders."""
    assert [link.target for page in pages() for link in links(page) if link.file.is_dir()] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """Missing files and anchors are reported; code, fences and foreign addresses are not links."""
    for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("# A page\n\n## A `part`, twice\n\n## A part, twice\n")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "one.md").write_text(
        "[good](../README.md#a-part-twice-1) [gone](two.md) [nothing](../README.md#none) [out](https://a.b)\n"
        "`[code](three.md)`\n```\n[fence](four.md)\n```\n"
    )
    assert broken_links(tmp_path) == ["docs/one.md: two.md", "docs/one.md: ../README.md#none"]
    assert anchors(tmp_path / "README.md") == {"a-page", "a-part-twice", "a-part-twice-1"}
    assert slugify("`dovecote doctor`: [check](x.md) it!") == "dovecote-doctor-check-it"


def repeated_entries(text: str) -> list[str]:
    """Return the beginnings of list entries whose words are those of an earlier one, however wrapped."""
    entries = [" ".join(one.split()) for one in re.findall(r"^- .+(?:\n  .+)*", text, re.MULTILINE)]
    return [one[:60] for place, one in enumerate(entries) if one in entries[:place]]


def test_the_changelog_says_everything_once() -> None:
    """A merge that keeps both sides' lines leaves entries twice."""
    assert repeated_entries((ROOT / "CHANGELOG.md").read_text()) == []
    assert repeated_entries("- one two\n  three\n- other\n- one\n  two three\n") == ["- one two three"]


def test_every_page_has_its_place_in_the_site() -> None:
    """The table of contents of mkdocs.yml names each page once, and no other."""
    listed = NAV.findall((ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(page.relative_to(ROOT).as_posix() for page in pages())


def test_the_reference_of_the_commands_is_current() -> None:
    """The committed page is what the commands say: `python -m scripts.reference` writes it."""
    assert PAGE.read_text() == reference()


def documents() -> list[Path]:
    """Return the Markdown files; the changelog has one line for each change."""
    return [path for path in tracked() if path.suffix == ".md" and path.name != "CHANGELOG.md"]


def faults_of_prose(text: str) -> Iterator[str]:
    """Yield each line of prose that is too long, and each cell that has too many words."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            yield from (f"{number}: {fault}" for fault in _faults_of_line(UNSHOWN.sub("", line)))


def _faults_of_line(line: str) -> Iterator[str]:
    if line.lstrip().startswith("|"):
        sizes = (len(cell.split()) for cell in re.split(r"(?<!\\)\|", line))
        yield from (f"a cell of {size} words" for size in sizes if size > MAX_CELL_WORDS)
    elif len(line) > MAX_LINE:
        yield f"a line of {len(line)} characters"


def python_faults(text: str) -> str:
    """Return what is wrong with the Python blocks of a page: their syntax, and undefined names."""
    blocks = [textwrap.dedent(block) for block in PYTHON.findall(text)]
    checked = [
        subprocess.run(
            [RUFF, "check", "--isolated", "--select", "F,E9", "--output-format", "concise", "-"],
            input=block,
            capture_output=True,
            text=True,
            check=False,
        )
        for block in blocks
    ]
    return "".join(one.stdout + one.stderr for one in checked if one.returncode)


def test_python_in_documents_can_be_copied() -> None:
    """Each block is a whole module: what it uses is imported or defined there."""
    faults = {page.name: python_faults(page.read_text(encoding="utf-8")) for page in pages()}
    assert {name: found for name, found in faults.items() if found} == {}


def test_python_that_cannot_be_copied_is_found() -> None:
    """Names from elsewhere, and `await` and `return` outside of a function."""
    assert "`key`" in python_faults("```python\nprint(key)\n```\n")
    assert python_faults("1. Step\n\n   ```python\n   import os\n   print(os.sep)\n   ```\n") == ""
    assert python_faults("```python\nawait_it = 1\nreturn await_it\n```\n")


def test_prose_is_wrapped_and_cells_are_short() -> None:
    """A line of a document has at most 100 characters, and a cell of a table at most 20 words."""
    assert len(documents()) > len(pages()) > 50
    assert [
        f"{page.relative_to(ROOT)}:{fault}"
        for page in documents()
        for fault in faults_of_prose(page.read_text(encoding="utf-8"))
    ] == []


def test_long_lines_and_cells_are_found() -> None:
    """Fenced code, targets of links, addresses and comments do not count, and all else does."""
    assert list(faults_of_prose("a" * 100 + f"\n- {'b' * 99}")) == ["2: a line of 101 characters"]
    code, link = f"```sh\n{'a' * 101}\n```\n", f"[{'a' * 98}]({'b' * 50}.md)\n"
    assert list(faults_of_prose(code + link + f"https://{'a' * 99}.b\n<!-- {'a' * 99} -->")) == []
    inner = f"````\n```\n{'a' * 101}\n````\n{'b' * 101}"
    assert list(faults_of_prose(inner)) == ["5: a line of 101 characters"]
    cells = "| " + " ".join(["a"] * 21) + " | " + " ".join(["b"] * 20) + r" \| | " + "c" * 101 + " |"
    assert list(faults_of_prose(cells)) == ["1: a cell of 21 words"] * 2
