"""Questions of commands on a terminal: Ctrl-C ends them at once, and no answer is no consent."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import Result

from fake_gateway import FakeGateway
from gateway.config.load import environment_without_ours

ROOT = Path(__file__).parents[3]
Run = Callable[..., Result]
Answer = Callable[[int, "subprocess.Popen[bytes]"], object]

DELETE = "accounts rm ada"
LISTEN = "webhooks listen --port 0"
INIT = "init --no-test"
CREDENTIAL = "credentials add token --host example.org --kind header --agent *"


def interrupt(_terminal: int, child: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C once."""
    child.send_signal(signal.SIGINT)


def type_text(text: bytes) -> Answer:
    """Return what types a text."""
    return lambda terminal, _child: os.write(terminal, text)


def ask(words: str, url: str, answer: Answer, directory: Path) -> tuple[int, str]:
    """Run a command on a terminal, answer its question, and return the exit code and what it showed."""
    ours, theirs = pty.openpty()
    located = [] if words in {LISTEN, INIT} else ["--url", url, "--key", "dvk_x"]
    child = subprocess.Popen(
        [sys.executable, "-m", "gateway", *words.split(), *located],
        cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**environment_without_ours(), "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none"},
    )  # fmt: skip
    os.close(theirs)
    shown, answered = b"", False
    with suppress(OSError):  # Linux reports the end of the other side as an error
        while piece := os.read(ours, 4096):
            shown += piece
            if not answered and shown.endswith(b": "):
                answered = True
                answer(ours, child)
    os.close(ours)
    return child.wait(60), shown.decode(errors="replace")


@pytest.mark.parametrize("words", [DELETE, CREDENTIAL, LISTEN])
def test_ctrl_c_at_a_question_ends_the_command(gateway: FakeGateway, tmp_path: Path, words: str) -> None:
    """One Ctrl-C is enough; nothing is sent, and nothing is shown after it."""
    code, shown = ask(words, gateway.url, interrupt, tmp_path)
    assert (code, shown.count("\n")) == (130, 0), shown
    assert not gateway.requests


@pytest.mark.parametrize("kind", ["conversations", "sandboxes", "skills", "workspaces"])
def test_a_person_is_asked_and_a_script_is_not(
    run: Run, gateway: FakeGateway, tmp_path: Path, kind: str
) -> None:
    """Messages, files and jobs that are deleted are gone; scripts delete them without a question."""
    code, shown = ask(f"{kind} rm ada", gateway.url, type_text(b"n\n"), tmp_path)
    assert (code, "nothing was deleted" in shown) == (1, True), shown
    assert not gateway.requests
    for path in ("/conversations/ada", f"/accounts/me/{kind}/ada"):
        gateway.responses["DELETE", path] = (204, "")
    assert run(kind, "rm", "ada", "--url", gateway.url).exit_code == 0


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"\x04"])
def test_only_yes_deletes(gateway: FakeGateway, tmp_path: Path, answer: bytes) -> None:
    """Another answer, none, and the end of input delete nothing, and the command says so."""
    code, shown = ask(DELETE, gateway.url, type_text(answer), tmp_path)
    assert (code, "nothing was deleted" in shown) == (1, True), shown
    assert not gateway.requests


def test_yes_deletes(gateway: FakeGateway, tmp_path: Path) -> None:
    """The answer `y` is the consent."""
    gateway.responses["DELETE", "/accounts/ada"] = (200, {})
    assert ask(DELETE, gateway.url, type_text(b"y\n"), tmp_path)[0] == 0
    assert [one[:2] for one in gateway.requests] == [("DELETE", "/accounts/ada")]


def test_a_typed_secret_is_not_shown(gateway: FakeGateway, tmp_path: Path) -> None:
    """The terminal does not repeat it, and the gateway gets it."""
    gateway.responses["POST", "/accounts/me/credentials"] = (201, {"id": "crd_1"})
    code, shown = ask(CREDENTIAL, gateway.url, type_text(b"canary\n"), tmp_path)
    assert (code, "canary" in shown) == (0, False), shown
    assert gateway.requests[0][2]["secret"] == "canary"


def test_without_a_terminal_the_listener_needs_its_secret(run: Run) -> None:
    """Without a terminal, a missing secret is wrong usage."""
    refused = run("webhooks", "listen")
    assert (refused.exit_code, refused.stderr) == (2, "dovecote: pass --secret\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conversations handover cnv_1 nope", "'nope' is not one of 'human', 'agent'."),
        ("webhooks listen --port 99999", "should be less than or equal to 65535"),
    ],
)
def test_a_wrong_argument_is_explained_in_plain_words(run: Run, words: str, reason: str) -> None:
    """The error has no words of the library that reads the arguments."""
    refused = run(*words.split())
    assert refused.exit_code == 2
    assert refused.stderr.rstrip().endswith(f": {reason}")
    assert "Value error" not in refused.stderr


def test_wrong_answers_to_init_are_asked_for_again(tmp_path: Path) -> None:
    """The answers before are not lost; each line says what is allowed."""
    typed = b"gpt-5\nopenai:gpt-5\nlocalhost\nhttp://127.0.0.1:9/v1\nfax\n\n"
    code, shown = ask(INIT, "", type_text(typed), tmp_path)
    assert code == 0, shown
    assert "model = 'gpt-5': " in shown
    assert "base_url = 'localhost': must be an absolute http or https URL" in shown
    assert "fax cannot be set up here: use telegram, slack, discord" in shown
    written = (tmp_path / "dovecote.toml").read_text()
    assert ('model = "openai:gpt-5"' in written, 'base_url = "http://127.0.0.1:9/v1"' in written) == (
        True,
        True,
    )
