"""How the host provider starts processes: beside the event loop, with nothing inherited and nothing lost."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from held_exec import held_program
from sandbox.errors import ProviderRefused
from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.run.execution import execute, start_run
from sandbox.host.run.launch import Launch
from sandbox.host.run.spawn import (
    HAS_POSIX_SPAWN,
    ChildProcess,
    Program,
    fork_exec,
    posix_spawn,
    spawn,
)
from sandbox.model import ExecRequest
from sandbox.testing.processes import processes_with, unique_sleep_seconds

ROOT = Path(__file__).parents[3]
NEEDS_POSIX_SPAWN = pytest.mark.skipif(not HAS_POSIX_SPAWN, reason="needs glibc 2.34 or newer")
WAYS = [pytest.param(posix_spawn, marks=NEEDS_POSIX_SPAWN), fork_exec]

Way = Callable[[Program], ChildProcess]


def open_descriptors() -> set[str]:
    """Return the descriptors of this process, with what each refers to."""
    entries = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return {f"{entry.name} {entry.readlink()}" for entry in entries}


@pytest.fixture
def stray() -> Iterator[int]:
    """A descriptor that any exec inherits unless it is closed."""
    ends = os.pipe2(0)
    yield ends[1]
    for end in ends:
        os.close(end)


def output_of(way: Way, script: str, *, passed: Sequence[int] = (), directory: str = "/") -> list[str]:
    """Run a shell script with the numbers of its passed descriptors as arguments; return its lines."""
    with ExitStack() as opened:
        source, end = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, source)
        with ExitStack() as writing:
            writing.callback(os.close, end)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            writing.callback(os.close, nothing)
            child = way(
                Program(
                    argv=lambda numbers: ["/bin/sh", "-c", script, "sh", *map(str, numbers)],
                    environment={"NAME": "wört\udcff=", "PATH": "/usr/bin:/bin"},
                    directory=directory,
                    standard=(nothing, end, end),
                    passed=passed,
                )
            )
        with os.fdopen(os.dup(source), encoding="utf-8", errors="surrogateescape") as output:
            lines = output.read().splitlines()
    assert child.wait() == 0, lines
    return lines


@pytest.mark.parametrize("way", WAYS)
def test_a_program_has_its_session_directory_and_variables(way: Way, tmp_path: Path) -> None:
    """It leads a session, works in its directory, and has exactly the given variables, byte for byte."""
    script = 'cut -d " " -f 6 /proc/$$/stat; echo $$; pwd -P; cat /proc/$$/environ | tr "\\0" "\\n"'
    session, pid, directory, *variables = output_of(way, script, directory=str(tmp_path))
    assert session == pid
    assert directory == str(tmp_path.resolve())
    assert "NAME=wört\udcff=" in variables
    assert {one.partition("=")[0] for one in variables} == {"NAME", "PATH"}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_inherits_nothing_but_what_is_passed(way: Way, stray: int) -> None:
    """It has its own three descriptors and the passed ones, also if the parent has inheritable ones."""
    secret = os.memfd_create("secret")
    try:
        os.pwrite(secret, b"passed\n", 0)
        assert output_of(way, "cat /proc/$$/fd/$1", passed=(secret,)) == ["passed"]
        targets = output_of(way, "for one in /proc/$$/fd/*; do readlink $one || true; done", passed=(secret,))
        assert len(targets) == 4
        assert f"pipe:[{os.fstat(stray).st_ino}]" not in targets
        assert not os.get_inheritable(secret)
    finally:
        os.close(secret)


@NEEDS_POSIX_SPAWN
def test_a_passed_descriptor_may_have_a_number_of_the_programs_own() -> None:
    """Descriptors 0 and 1 of this process arrive as 3 and 4, although the program has its own 0 and 1."""
    expected = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in (1, 0)]
    before = open_descriptors()
    lines = output_of(posix_spawn, "readlink /proc/$$/fd/$1; readlink /proc/$$/fd/$2", passed=(1, 0))
    assert lines == expected
    assert open_descriptors() == before


@pytest.mark.parametrize("way", WAYS)
def test_a_program_has_the_default_signals(way: Way) -> None:
    """Signals that the interpreter ignores or handles have their default actions, and none is blocked."""
    # By the shell itself: it blocks all signals for a moment when it starts another program.
    script = "while read -r name mask; do case $name in Sig[BI]*) echo $mask; esac; done < /proc/$$/status"
    blocked, ignored = (int(mask, 16) for mask in output_of(way, script))
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
    assert blocked == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_cannot_be_started_is_an_error(way: Way, tmp_path: Path) -> None:
    """A missing program or directory and a file that is no program are OSErrors that name it."""
    plain = tmp_path / "plain"
    plain.touch()
    before = open_descriptors()

    def attempt(name: Path, directory: Path) -> OSError:
        program = Program(
            argv=lambda _: [str(name)], environment={}, directory=str(directory), standard=(0, 1, 2)
        )
        try:
            way(program)
        except OSError as error:
            return error
        pytest.fail(f"{name} was started")

    missing = attempt(tmp_path / "missing", tmp_path)
    assert (missing.errno, missing.filename) == (errno.ENOENT, str(tmp_path / "missing"))
    refused = attempt(plain, tmp_path)
    assert (refused.errno, refused.filename) == (errno.EACCES, str(plain))
    nowhere = attempt(Path("/bin/true"), tmp_path / "nowhere")
    assert (nowhere.errno, nowhere.filename) == (errno.ENOENT, str(tmp_path / "nowhere"))
    assert open_descriptors() == before


@pytest.mark.parametrize("way", WAYS)
def test_a_word_with_nul_is_refused(way: Way) -> None:
    """NUL, which would end an argument or a variable early, starts nothing."""
    for argv, environment in ((["/bin/true", "a\0b"], {}), (["/bin/true"], {"A": "x\0y"})):
        program = Program(
            argv=partial(lambda words, _: words, argv),
            environment=environment,
            directory="/",
            standard=(0, 1, 2),
        )
        with pytest.raises(ValueError, match=r"NUL|null"):
            way(program)


@pytest.mark.parametrize("way", WAYS)
def test_a_child_reports_how_it_ended(way: Way) -> None:
    """The exit code or minus the signal is returned once it has ended, and again later."""
    for script, code in (("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL)):
        program = Program(
            argv=partial(lambda text, _: ["/bin/sh", "-c", text], script),
            environment={},
            directory="/",
            standard=(0, 1, 2),
        )
        child = way(program)
        assert (child.wait(), child.poll(), child.wait()) == (code, code, code)
        child.send_signal(signal.SIGKILL)


def test_a_child_that_was_reaped_elsewhere_has_ended() -> None:
    """Without a status, as where SIGCHLD is ignored, a child counts as ended, and no signal is sent."""
    program = Program(argv=lambda _: ["/bin/false"], environment={}, directory="/", standard=(0, 1, 2))
    child = spawn(program)
    os.waitpid(child.pid, 0)
    child.send_signal(signal.SIGKILL)
    assert (child.poll(), child.wait()) == (0, 0)


@NEEDS_POSIX_SPAWN
async def test_the_loop_continues_while_a_process_is_before_its_exec(tmp_path: Path) -> None:
    """While the new process cannot execute its program, the event loop runs other tasks."""
    program = tmp_path / "program"
    launch = Launch(prefix=[str(program)], program=[], suffix=[], environment={}, group=Cgroup())
    with held_program(program, "cat") as held:
        starting = asyncio.ensure_future(start_run(launch, None, stdin=True))
        await held.wanted.wait()
        assert processes_with(str(program)) == []
        assert not starting.done()
        held.release()
        run = await starting
    assert (await execute(run, ExecRequest(script="", stdin=b"done"))).stdout == b"done"


@NEEDS_POSIX_SPAWN
async def test_a_cancelled_start_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    """A start that is cancelled before the exec waits for it, kills the process and closes everything."""
    program, seconds = tmp_path / "program", unique_sleep_seconds()
    launch = Launch(
        prefix=[str(program)], program=[], suffix=[], secret=["--x"], environment={}, group=Cgroup()
    )
    with held_program(program, f"sleep {seconds}") as held:
        before = open_descriptors()
        starting = asyncio.ensure_future(start_run(launch, None, stdin=True))
        await held.wanted.wait()
        assert open_descriptors() > before
        starting.cancel()
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert open_descriptors() == before
    assert processes_with(seconds) == []
    assert processes_with(str(program)) == []


async def test_a_failed_start_leaves_no_descriptor(tmp_path: Path) -> None:
    """A program that does not exist is refused, cancelled or not, with every pipe closed."""
    missing = tmp_path / "missing"
    launch = Launch(
        prefix=[str(missing)], program=[], suffix=[], secret=["--x"], environment={}, group=Cgroup()
    )
    before = open_descriptors()
    with pytest.raises(ProviderRefused, match=str(missing)):
        await start_run(launch, None, stdin=True)
    starting = asyncio.ensure_future(start_run(launch, None, stdin=True))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert open_descriptors() == before
