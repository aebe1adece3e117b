"""The documentation: links and anchors that exist, a complete table of contents, a current reference."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.doc_links import ROOT, anchors, broken_links, links, pages, slugify
from scripts.reference import PAGE, reference

NAV = re.compile(r"^ +- [^:\n]+: (\S+\.md)$", re.MULTILINE)


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


def test_every_page_has_its_place_in_the_site() -> None:
    """The table of contents of mkdocs.yml names each page once, and no other."""
    listed = NAV.findall((ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(page.relative_to(ROOT).as_posix() for page in pages())


def test_the_reference_of_the_commands_is_current() -> None:
    """The committed page is what the commands say: `python -m scripts.reference` writes it."""
    assert PAGE.read_text() == reference()
