"""Folders of skills: which files a skill has, and what its header says about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.records.errors import InvalidRecord
from gateway.records.skill_folders import (
    MAX_FILES,
    describe_skill,
    read_skill_folders,
    warn_of_undescribed,
)

DOCUMENT = "---\ndescription: how to deploy\n---\nRun it."


def write_skill(folder: Path, document: str = DOCUMENT) -> Path:
    """Make a folder with a SKILL.md and return it."""
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(document)
    return folder


@pytest.mark.parametrize(
    "value",
    [
        " how to deploy",
        ' "how to deploy"  # a comment',
        " 'how to deploy'",
        " how to\n  deploy",
        "\n  how to\n  deploy",
        ' "how\n  to deploy"',
        " >\n  how to\n\n  deploy\n",
        " >-\n  how to\n  deploy",
        " |  # kept lines\n  how to\n  deploy",
        " |2+\n  how to deploy\n",
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_description_is_read_in_each_style_of_yaml(value: str, newline: str) -> None:
    """A text behind the key, in quotes or in indented lines is one line."""
    document = f"---\nname: deploy\ndescription:{value}\nlicense: MIT\n---\nRun it.\n"
    assert describe_skill(document.replace("\n", newline).encode()) == "how to deploy"


@pytest.mark.parametrize(
    ("document", "description"),
    [
        ("Run it.", ""),
        ("---\ndescription: without an end\n", ""),
        ("---\nname: deploy\n---\ndescription: of the text", ""),
        ("---\ndescription:\n---\n", ""),
        ("---\ndescription:\nname: deploy\n---\n", ""),
        ("\ufeff---\ndescription: deploy: how, and #1\n---\n", "deploy: how, and #1"),
        ('---\ndescription: "say \\"coo\\""\n---\n', 'say "coo"'),
        ("---\ndescription: 'it''s how'\n---\n", "it's how"),
    ],
)
def test_a_header_can_be_missing_or_plain(document: str, description: str) -> None:
    """Without a complete header there is no description; colons and number signs stay."""
    assert describe_skill(document.encode()) == description


def test_a_clone_of_a_repository_is_a_skill_without_its_hidden_folders(tmp_path: Path) -> None:
    """The many files of `.git` are no files of the skill, and hidden folders are no skills."""
    folder = write_skill(tmp_path / "deploy")
    (folder / ".env.example").write_text("x")
    objects = write_skill(folder / ".git")
    for number in range(MAX_FILES + 1):
        (objects / str(number)).write_text("x")
    write_skill(tmp_path / ".trash")
    found = read_skill_folders(tmp_path)
    assert {name: sorted(skill.files) for name, skill in found.items()} == {
        "deploy": [".env.example", "SKILL.md"]
    }


def test_a_skill_can_be_a_volume_of_a_config_map(tmp_path: Path) -> None:
    """Links to files of the same folder are files, as Kubernetes makes them."""
    folder = tmp_path / "deploy"
    write_skill(folder / "..2026_11_30")
    (folder / "..data").symlink_to("..2026_11_30")
    (folder / "SKILL.md").symlink_to("..data/SKILL.md")
    (found,) = read_skill_folders(tmp_path).values()
    assert (found.description, dict(found.files)) == ("how to deploy", {"SKILL.md": DOCUMENT.encode()})


def test_a_linked_folder_is_a_skill(tmp_path: Path) -> None:
    """A folder may be a link to one elsewhere."""
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "deploy").symlink_to(write_skill(tmp_path / "elsewhere"))
    assert list(read_skill_folders(tmp_path / "skills")["deploy"].files) == ["SKILL.md"]


def test_a_document_outside_its_folder_is_a_problem(tmp_path: Path) -> None:
    """A SKILL.md that is a link out of its folder is named."""
    (tmp_path / "skills" / "deploy").mkdir(parents=True)
    (tmp_path / "skills" / "deploy" / "SKILL.md").symlink_to(write_skill(tmp_path / "out") / "SKILL.md")
    with pytest.raises(InvalidRecord, match=r"deploy/SKILL\.md is a link that leads out"):
        read_skill_folders(tmp_path / "skills")


@pytest.mark.parametrize("name", [b"bad\xff", b"a\nb", b"/".join([b"n" * 250] * 3)])
def test_a_name_that_cannot_be_stored_is_a_problem(tmp_path: Path, name: bytes) -> None:
    """Bytes that are not UTF-8, control characters and long paths are refused before the database is."""
    file = Path(os.fsdecode(os.fsencode(write_skill(tmp_path / "deploy")) + b"/" + name))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    with pytest.raises(InvalidRecord, match="a path has at most 500 characters"):
        read_skill_folders(tmp_path)


def test_a_skill_without_a_description_is_reported(tmp_path: Path) -> None:
    """It is a skill nevertheless, and the warning names it."""
    write_skill(tmp_path / "deploy")
    write_skill(tmp_path / "release", "Run it.")
    with capture_logs() as lines:
        warn_of_undescribed(read_skill_folders(tmp_path))
    assert [(one["event"], one["log_level"], one["skill"]) for one in lines] == [
        ("skill.undescribed", "warning", "release")
    ]
