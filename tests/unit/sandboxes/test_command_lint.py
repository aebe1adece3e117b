"""What is refused with a word before a sandbox sees it, and what is not."""

from __future__ import annotations

import pytest

from sandbox.exec.command_lint import missing_runtime, path_outside_workspace

ALLOWED = (
    "ls -la",
    "echo hi > out.txt && cat out.txt",
    "find . -name '*.py' | xargs wc -l",
    "grep -r foo/bar src",
    "awk '/home/ {print $1}' names",
    "sed -e /foo/d file",
    "curl -s https://example.com/a/b",
    "cmd >/dev/null 2>&1",
    "cd sub && make ; cd -",
    "TMP=/tmp/x mktemp /tmp/abc.XXX",
    "/usr/bin/env bash -c true",
    "git diff HEAD~1..HEAD",
    "echo a...b ..c",
    "cat <<EOF\n/etc/passwd is a file\nEOF",
    "cat <<-'END' > out\n\tcat /etc/passwd\n\tEND\nls",
    "cat <<A <<B\ncat /etc/one\nA\ncat /etc/two\nB\nls",
    "echo 'unbalanced",
)
OUTSIDE_PATHS = (
    "cat /etc/passwd",
    "ls ..",
    "cat ../secret",
    "cp a sub/../../b",
    "echo x >/root/.bashrc",
    "true; ls /home/someone",
    "find / -name id_rsa",
    "du -sh /",
    "grep -r key /etc/ssl",
    "ls && (cat /var/log/syslog)",
    "cat <<EOF\ntext\nEOF\ncat /etc/passwd",
    "cat <<EOF\ncat /etc/passwd",
    "cat <<<EOF\ncat /etc/passwd\nEOF",
)


@pytest.mark.parametrize("script", ALLOWED)
def test_ordinary_scripts_pass(script: str) -> None:
    """A script that stays in the working directory is let through."""
    assert path_outside_workspace(script) is None


@pytest.mark.parametrize("script", OUTSIDE_PATHS)
def test_obvious_reaching_out_is_refused(script: str) -> None:
    """Absolute paths, climbing and whole-filesystem scans are refused with a reason."""
    assert path_outside_workspace(script)


@pytest.mark.parametrize("script", ["python3 -V", "FOO=1 python x.py", "ls | uv run x", "sudo pip install x"])
def test_a_runtime_not_offered_is_refused(script: str) -> None:
    """An obvious invocation of a runtime outside the list is refused and names what is offered."""
    told = missing_runtime(script, ("bash", "node"))
    assert told is not None
    assert "bash, node" in told
    assert missing_runtime(script, ("bash", "python")) is None


@pytest.mark.parametrize("script", ["echo python", "cat node/file", "./nodes.sh", "grep npm .", "pythonic"])
def test_mentioning_a_runtime_is_no_invocation(script: str) -> None:
    """A runtime's name as an argument or as part of another name is not refused."""
    assert missing_runtime(script, ("bash",)) is None
