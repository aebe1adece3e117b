"""The arguments of the Git tools: what is accepted stays one argument, and is never an option."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.git.author import make_author
from gateway.tools.git.git_arguments import (
    commit_argument,
    directory_argument,
    git_command,
    message_argument,
    name_argument,
    paths_argument,
    url_argument,
)
from gateway.tools.tool import InvalidArguments


@pytest.mark.parametrize(
    "name", ["main", "fix/two-words", "v1.2", "it's", 'quo"te', "a;b", "$(id)", "`id`", "h\u00e9", "x" * 200]
)
def test_names_that_git_accepts_are_accepted(name: str) -> None:
    """A shell's special letters are letters of a name like others."""
    assert name_argument({"branch": name}, "branch") == name


@pytest.mark.parametrize(
    "name",
    [
        *("-f", "--force", "a b", "a..b", "a\nb", "a:b", "a~1", "^a", "/a", "a/", ".a", "a/.b", "a.lock"),
        *("a@{1}", "a\\b", "a?", "a*", "[a]", "\x00", "x" * 201, "a.", "a//b"),
    ],
)
def test_names_that_could_be_anything_else_are_refused(name: str) -> None:
    """An option, a refspec, a range or a pattern is no name of a branch."""
    with pytest.raises(InvalidArguments, match="branch must be"):
        name_argument({"branch": name}, "branch")


@pytest.mark.parametrize(
    ("commit", "good"), [("HEAD~2", True), ("a1b2^", True), ("-O/x", False), ("~", False)]
)
def test_a_commit_may_be_an_ancestor(commit: str, *, good: bool) -> None:
    """`HEAD~2` names a commit; an option does not."""
    if good:
        assert commit_argument({"against": commit}, "against") == commit
    else:
        with pytest.raises(InvalidArguments):
            commit_argument({"against": commit}, "against")


@pytest.mark.parametrize(
    "url", ["https://git.example.org/a.git", "http://127.0.0.1:8080/a b".replace(" ", "%20"), "git://host/x"]
)
def test_addresses_of_servers_are_accepted(url: str) -> None:
    """The protocols that the proxy and git support."""
    assert url_argument({"url": url}) == url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("--upload-pack=touch x", "https://"),
        ("ext::sh -c id", "https://"),
        ("file:///etc", "https://"),
        ("/srv/repository", "https://"),
        ("ssh://host/x", "https://"),
        ("https://-oProxyCommand=x/y", "https://"),
        ("https://user:secret@host/x", "credentials"),
        ("git@host:x.git", "credentials"),
        ("https://host/a\nb", "https://"),
    ],
)
def test_other_addresses_are_refused(url: str, reason: str) -> None:
    """No address runs a program, reads the machine, or holds a password."""
    with pytest.raises(InvalidArguments, match=reason):
        url_argument({"url": url})


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../b", "\x00"])
def test_paths_stay_inside(path: str) -> None:
    """For the directory and for the paths."""
    with pytest.raises(InvalidArguments, match="inside the workspace"):
        directory_argument({"directory": path})
    with pytest.raises(InvalidArguments, match="inside the workspace"):
        paths_argument({"paths": [path]})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60))
def test_any_text_is_one_word_and_no_option(text: str) -> None:
    """What the shell reads back is what was given, behind `./`, `--` or a flag of ours."""
    try:
        directory, paths = directory_argument({"directory": text}), paths_argument({"paths": [text]})
    except InvalidArguments:
        return
    words = shlex.split(git_command(directory, "add", "--", *paths))
    assert words[-1] == paths[0]
    assert words[words.index("-C") + 1] == directory
    assert not paths[0].startswith("-")
    assert not directory.startswith("-")


@pytest.mark.parametrize("message", ["", "  ", "\0", "x" * 20_001])
def test_a_message_has_text(message: Any) -> None:
    """Git refuses an empty one, and C strings end at NUL."""
    with pytest.raises(InvalidArguments):
        message_argument({"message": message})


@pytest.mark.parametrize(
    ("name", "person", "shown", "email"),
    [
        ("Ada Lovelace", "U1", "Ada Lovelace", "U1@slack.invalid"),
        ("Eve <root@x>\nEvil: 1", "1", "Eve root@x Evil: 1", "1@slack.invalid"),
        ("", "key_1", "key_1", "key_1@slack.invalid"),
        ("<>", "a b@c", "a-b-c", "a-b-c@slack.invalid"),
        ("", "\u2603", "unknown", "unknown@slack.invalid"),
    ],
)
def test_an_author_is_one_line_for_git(name: str, person: str, shown: str, email: str) -> None:
    """A display name cannot add headers to a commit or empty its author."""
    author = make_author(name, person, "slack")
    assert (author.name, author.email) == (shown, email)
    assert author.environment()["GIT_COMMITTER_NAME"] == shown
