"""`chat` and `tail` against a scripted gateway: answers, approvals, restarts, ends."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from commands import PIPE, gateway_command
from fake_gateway import ClientSocket, FakeGateway, fake_gateway
from gateway.config.load import environment_without_ours


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """Return a simulated gateway."""
    with fake_gateway() as stand_in:
        yield stand_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def command(gateway: FakeGateway, directory: Path, *words: str, typed: str = "") -> Done:
    """Run a command against the simulated gateway, with `typed` as its whole input."""
    return asyncio.run(_commanded(*words, "--url", gateway.url, directory=directory, typed=typed))


async def _commanded(*words: str, directory: Path, typed: str) -> Done:
    env = environment_without_ours()
    child = await gateway_command(*words, env=env, cwd=directory, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(60):
        out, errors = await child.communicate(typed.encode())
    assert child.returncode is not None
    return Done(returncode=child.returncode, stdout=out.decode(), stderr=errors.decode())


async def _reply_in_two_deltas(socket: ClientSocket) -> None:
    """Answer one message in two deltas."""
    await socket.receive("subscribe")
    await socket.send_control("error", code="not_found", detail="no conversation", conversation="terminal")
    sent = await socket.receive("send")
    await socket.send_control("accepted", id=sent["id"], turn="trn_1", conversation="cnv_1")
    resumed = await socket.receive("subscribe")
    assert resumed["after"] == 0
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    await socket.send_event("message.received", role="user", text=sent["text"])
    await socket.send_event("turn.started")
    await socket.send_event("message.delta", message="m", part=0, text="hel")
    await socket.send_event("message.delta", message="m", part=1, text="lo")
    await socket.send_event("message.completed", role="assistant", text="hello")
    await socket.send_event("turn.completed")


def test_chat_prints_the_answer_and_ends(gateway: FakeGateway, tmp_path: Path) -> None:
    """With a message, `chat` sends it, prints the answer once, and ends with 0."""
    gateway.scripts = [_reply_in_two_deltas]
    result = command(gateway, tmp_path, "chat", "hi")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "hello\n"


async def _refuse_busy(socket: ClientSocket) -> None:
    """Have too much to do."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    await socket.send_control("error", code="too_many", detail="50 turns are waiting", id=sent["id"])
    await socket.socket.receive()


def test_a_refused_message_is_reported(gateway: FakeGateway, tmp_path: Path) -> None:
    """A refused message is one line on stderr, exit code 1."""
    gateway.scripts = [_refuse_busy]
    done = command(gateway, tmp_path, "chat", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "dovecote: 50 turns are waiting\n"


async def _report_database_unavailable(socket: ClientSocket) -> None:
    """Have no database just now."""
    await socket.receive("subscribe")
    await socket.send_control("error", code="unavailable", detail="try again soon")


def test_a_passing_failure_is_tried_again(gateway: FakeGateway, tmp_path: Path) -> None:
    """Where the gateway cannot answer just now, the message is sent again and answered."""
    gateway.scripts = [_report_database_unavailable, _reply_in_two_deltas]
    done = command(gateway, tmp_path, "chat", "hi")
    assert (done.returncode, done.stdout) == (0, "hello\n")


async def _report_unknown_conversation(socket: ClientSocket) -> None:
    """Have no such conversation."""
    await socket.receive("subscribe")
    await socket.send_control(
        "error", code="not_found", detail="there is no such conversation", conversation="c"
    )


def test_tail_needs_a_conversation(gateway: FakeGateway, tmp_path: Path) -> None:
    """`tail` of a conversation that is not there fails, and does not subscribe, which would create it."""
    done = command(gateway, tmp_path, "tail", "c")
    assert done.returncode == 1
    assert done.stderr.startswith("dovecote: there is no such conversation: c; `dovecote conversations list`")
    assert gateway.sockets == []


def test_tail_of_a_conversation_that_is_just_deleted_fails(gateway: FakeGateway, tmp_path: Path) -> None:
    """The refusal of the subscription ends the command too."""
    gateway.responses["GET", "/conversations/c"] = (200, {"id": "cnv_1"})
    gateway.scripts = [_report_unknown_conversation]
    done = command(gateway, tmp_path, "tail", "c")
    assert done.returncode == 1
    assert done.stderr == "dovecote: there is no such conversation\n"


async def _disconnect_mid_answer(socket: ClientSocket) -> None:
    """Go away in the middle of an answer."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    await socket.send_control("accepted", id=sent["id"], turn="trn_1", conversation="cnv_1")
    await socket.send_event("message.delta", message="m", part=0, text="hal")
    await socket.socket.close(code=1012)


async def _resume_with_second_attempt(socket: ClientSocket) -> None:
    """Continue from the client's position, with a second attempt at the turn."""
    resumed = await socket.receive("subscribe")
    assert (resumed["conversation"], resumed["after"], resumed["epoch"]) == ("cnv_1", 1, "e")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=1, last_seq=5)
    socket.seq = 5
    await socket.send_event("turn.restarted", attempt=2)
    await socket.send_event("turn.waiting", attempt=2, reason="loading the workspace")
    await socket.send_event("message.completed", role="assistant", text="hello again")
    await socket.send_event("turn.failed", error="it broke")


def test_chat_survives_a_restart_and_reports_failure(gateway: FakeGateway, tmp_path: Path) -> None:
    """A connection that breaks is resumed at the last seq; a failed turn ends with 1."""
    gateway.scripts = [_disconnect_mid_answer, _resume_with_second_attempt]
    result = command(gateway, tmp_path, "chat", "hi")
    assert result.returncode == 1
    assert "… still loading the workspace\nhello again\n" in result.stdout
    assert "it broke" in result.stdout


async def _execute_command(socket: ClientSocket) -> None:
    """Execute a command: it has a reply and no turn."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    about = {"turn": None, "conversation": "cnv_1", "command": "status", "reply": "Nothing is running."}
    await socket.send_control("accepted", id=sent["id"], **about)


def test_chat_prints_the_reply_to_a_command(gateway: FakeGateway, tmp_path: Path) -> None:
    """A command ends with its reply, since no turn follows."""
    gateway.scripts = [_execute_command]
    result = command(gateway, tmp_path, "chat", "/status")
    assert (result.returncode, result.stdout) == (0, "Nothing is running.\n")


async def _request_approval(socket: ClientSocket) -> None:
    """Ask for approval of a command and act on the decision."""
    await _request_approval_of(socket, tool="bash", args={"command": "rm x"}, command="rm x")


async def _request_approval_of_a_tool(socket: ClientSocket) -> None:
    """Ask for approval of a call with arguments, as the gateway writes it, and act on the decision."""
    await _request_approval_of(socket, tool="flight_time", args={"km": 9}, command='flight_time {"km": 9}')


async def _request_approval_of(socket: ClientSocket, **call: Any) -> None:
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    await socket.send_control("accepted", id=sent["id"], turn="trn_1", conversation="cnv_1")
    await socket.send_event("approval.requested", approval="apr_1", **call)
    decided = await socket.receive("approve")
    await socket.send_event("approval.resolved", approval="apr_1", decision=decided["decision"])
    await socket.send_event("message.completed", role="assistant", text=f"you said {decided['decision']}")
    await socket.send_event("turn.completed")


@pytest.mark.parametrize(("answer", "decision"), [("y", "approve"), ("maybe\nno", "deny")])
def test_a_person_decides_in_chat(gateway: FakeGateway, tmp_path: Path, answer: str, decision: str) -> None:
    """An approval is asked for by its command, and y or n decides."""
    gateway.scripts = [_request_approval]
    done = command(gateway, tmp_path, "chat", "please", typed=f"{answer}\n")
    assert done.returncode == 0, done.stderr
    assert "rm x" in done.stdout
    assert f"you said {decision}" in done.stdout


def test_no_person_there_to_approve(gateway: FakeGateway, tmp_path: Path) -> None:
    """When input has ended, the approval stays open, and one line names how to decide it; exit code 1."""
    gateway.scripts = [_request_approval]
    done = command(gateway, tmp_path, "chat", "please", typed="")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "waits for approval of bash rm x: dovecote approvals approve apr_1 (or deny apr_1)" in line


def test_a_person_at_a_terminal_is_asked(gateway: FakeGateway, tmp_path: Path) -> None:
    """The terminal shows the question also while the answer goes to a file, and its line decides."""
    gateway.scripts = [_request_approval]
    done = asyncio.run(_commanded_at_terminal("chat", "please", "--url", gateway.url, directory=tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "approve bash rm x? y/n "
    assert "you said approve" in done.stdout


def test_a_tool_call_is_asked_for_with_its_name_once(gateway: FakeGateway, tmp_path: Path) -> None:
    """An approval's command begins with the name of the tool, and the question does not repeat it."""
    gateway.scripts = [_request_approval_of_a_tool]
    done = command(gateway, tmp_path, "chat", "please", typed="")
    (line,) = done.stderr.splitlines()
    assert 'waits for approval of flight_time {"km": 9}: dovecote' in line


async def _answer_once(socket: ClientSocket) -> None:
    """Answer one message."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    await socket.send_control("accepted", id=sent["id"], turn="trn_1", conversation="cnv_1")
    await socket.send_event("message.completed", role="assistant", text=f"{len(sent['text'])} letters")
    await socket.send_event("turn.completed")


def test_a_message_that_no_frame_can_hold_is_refused(gateway: FakeGateway, tmp_path: Path) -> None:
    """The gateway closes the connection after a longer frame, each time again. Letters count as in UTF-8.

    The rest of piped input is answered, and the exit code says that a line was refused.
    """
    gateway.scripts = [_answer_once]
    done = command(gateway, tmp_path, "chat", typed=f"{'a' * 66_000}\n{'鳩' * 20_000}\n")
    assert done.returncode == 1, done.stderr
    assert "too long to send (66" in done.stderr
    assert "20000 letters\n" in done.stdout


async def _answer_with_a_dove(socket: ClientSocket) -> None:
    """Answer with a letter that few encodings have."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    await socket.send_control("accepted", id=sent["id"], turn="trn_1", conversation="cnv_1")
    await socket.send_event("message.completed", role="assistant", text="gr\u00fc\u00dfe \U0001f54a")
    await socket.send_event("turn.completed")


def test_letters_that_the_output_does_not_have_are_replaced(gateway: FakeGateway, tmp_path: Path) -> None:
    """A terminal or a job with another encoding than UTF-8 shows the rest of the answer."""
    gateway.scripts = [_answer_with_a_dove]
    words, env = ("chat", "hi", "--url", gateway.url), environment_without_ours()
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *words], env=env | {"PYTHONIOENCODING": "latin-1"}, cwd=tmp_path,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "grüße ?\n".encode("latin-1"), b"")


async def _wait_in_line(socket: ClientSocket) -> None:
    """Queue a message behind two turns, and never run it."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    sent = await socket.receive("send")
    await socket.send_control("accepted", id=sent["id"], turn="trn_1", conversation="cnv_1")
    await socket.send_event("turn.queued", position=2)


def test_a_person_leaves_while_a_message_is_in_line(gateway: FakeGateway, tmp_path: Path) -> None:
    """The gateway has the message before Ctrl-D ends the command, which says that it goes on."""
    gateway.scripts = [_wait_in_line]
    words = ("chat", "--url", gateway.url)
    done = asyncio.run(_commanded_at_terminal(*words, directory=tmp_path, typed=b"hello\n\x04"))
    assert (done.returncode, "goes on without this terminal" in done.stderr) == (0, True), done


def test_a_second_interrupt_leaves_a_turn_that_does_not_end(gateway: FakeGateway, tmp_path: Path) -> None:
    """The first one asks the gateway to cancel it; the message in line says what is before it."""
    cancels: Queue[Any] = Queue()

    async def ignore_the_cancel(socket: ClientSocket) -> None:
        await _wait_in_line(socket)
        cancels.put(await socket.receive("cancel"))

    async def interrupt_twice() -> Done:
        words, env = ("chat", "hello", "--url", gateway.url), environment_without_ours()
        child = await gateway_command(
            *words, env=env, cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE, started=True
        )
        assert child.stdout is not None
        async with asyncio.timeout(60):
            shown = await child.stdout.readline()
            child.send_signal(signal.SIGINT)
            await asyncio.to_thread(cancels.get, timeout=30)
            child.send_signal(signal.SIGINT)
            _, errors = await child.communicate()
        return Done(returncode=child.returncode or 0, stdout=shown.decode(), stderr=errors.decode())

    gateway.scripts = [ignore_the_cancel]
    done = asyncio.run(interrupt_twice())
    assert (done.returncode, "in line behind 2 turns" in done.stdout) == (1, True), done


async def _commanded_at_terminal(*words: str, directory: Path, typed: bytes = b"y\n") -> Done:
    """Run a command whose input is a terminal at which a person types."""
    person, terminal = pty.openpty()
    try:
        os.write(person, typed)
        env = environment_without_ours()
        child = await gateway_command(
            *words, env=env, cwd=directory, stdin=terminal, stdout=PIPE, stderr=PIPE, started=True
        )
        async with asyncio.timeout(60):
            out, errors = await child.communicate()
    finally:
        os.close(person)
        os.close(terminal)
    assert child.returncode is not None
    return Done(returncode=child.returncode, stdout=out.decode(), stderr=errors.decode())


async def _answer_two_messages(socket: ClientSocket) -> None:
    """Answer two messages, the second with something going on beside it."""
    await socket.receive("subscribe")
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
    for turn in ("trn_1", "trn_2"):
        sent = await socket.receive("send")
        await socket.send_event("message.completed", turn, role="assistant", text=f"you: {sent['text']}")
        await socket.send_control("accepted", id=sent["id"], turn=turn, conversation="cnv_1")
        await socket.send_event("job.completed", "trn_0", resultId="job_1", exit_code=0, output="done")
        await socket.send_event("turn.completed", turn)


def test_piped_lines_are_messages(gateway: FakeGateway, tmp_path: Path) -> None:
    """Without a message each line of input is one, and the end of input leaves when all are answered."""
    gateway.scripts = [_answer_two_messages]
    done = command(gateway, tmp_path, "chat", typed="one\ntwo")
    assert done.returncode == 0, done.stderr
    assert "you: one\n" in done.stdout
    assert "you: two\n" in done.stdout
    assert "● job job_1 completed, exit 0\n" in done.stdout


@pytest.mark.parametrize(("code", "exit_code"), [(4401, 1), (4400, 1)])
def test_some_closes_are_final(gateway: FakeGateway, tmp_path: Path, code: int, exit_code: int) -> None:
    """A revoked key and a misunderstanding end the chat instead of trying again."""

    async def close(socket: ClientSocket) -> None:
        await socket.socket.close(code=code)

    gateway.scripts = [close]
    assert command(gateway, tmp_path, "chat", "hi").returncode == exit_code
    assert len(gateway.sockets) == 1


async def _replay_trimmed_history(socket: ClientSocket) -> None:
    """Replay a trimmed history in a batch."""
    asked = await socket.receive("subscribe")
    assert asked["after"] == 7
    await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=9, last_seq=10)
    await socket.send_control("gap", **{"from": 8, "to": 8, "snapshot": "/s"})
    items: list[dict[str, object]] = [
        {"seq": n, "n": n, "type": "turn.started", "time": "t", "data": {}} for n in (9, 10)
    ]
    await socket.send_control("events", items=items)
    await socket.send_control("caught_up", seq=10)


def test_tail_prints_events_and_gaps(gateway: FakeGateway, tmp_path: Path) -> None:
    """`tail` prints events from the cursor on, as JSON lines on demand, and reports a gap on stderr."""
    gateway.responses["GET", "/conversations/c"] = (200, {"id": "cnv_1"})
    gateway.scripts = [_replay_trimmed_history]
    result = command(gateway, tmp_path, "tail", "c", "--after", "7", "--no-follow", "--json")
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [9, 10]
    assert "8 to 8" in result.stderr
