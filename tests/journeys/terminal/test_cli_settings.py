"""Commands on the settings: init, config, migrations, and what doctor and serve say of wrong ones."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import Result

from channels.telegram.simulator import simulate
from command_line import run_command_line
from commands import run_to_end
from gateway.config.load import load
from openai_server import OpenAIServer, ScriptedTurn

ROOT = Path(__file__).parents[3]
Run = Callable[..., Result]


def test_init_never_overwrites(run: Run, tmp_path: Path) -> None:
    """`init` writes a file that is in order, once."""
    assert run("init").exit_code == 0
    first = (tmp_path / "dovecote.toml").read_text()
    assert run("config", "check").exit_code == 0
    again = run("init")
    assert again.exit_code == 1
    assert (tmp_path / "dovecote.toml").read_text() == first


async def test_init_tests_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that answers and a bot of the platform are written; a wrong token writes nothing."""
    monkeypatch.chdir(tmp_path)
    async with OpenAIServer([ScriptedTurn(text="ready")] * 4) as model, simulate() as platform:
        table = platform.settings()
        words = ["init", "--model", "openai:loopback", "--base-url", model.base_url, "--channel", "telegram"]
        words += ["--setting", f"base_url={table['base_url']}"]
        token = "DOVECOTE_CHANNELS__TELEGRAM__TOKEN"
        for given, code in (("1:wrong", 1), (table["token"], 0)):
            env = {"OPENAI_API_KEY": "sk-test", token: given, "NO_PROXY": "127.0.0.1"}
            done = await asyncio.to_thread(run_command_line, *words, env=env)
            assert done.exit_code == code, done.output
            assert "✓ model openai:loopback: answers" in done.output
            assert (tmp_path / "dovecote.toml").exists() == (code == 0)
        assert model.requests == 2
    settings = load(env={"OPENAI_API_KEY": "sk-test", token: table["token"]})
    assert (settings.agent.model, settings.agent.base_url) == ("openai:loopback", model.base_url)
    assert settings.channels["telegram"]["base_url"] == table["base_url"]
    assert (tmp_path / "dovecote.toml").stat().st_mode & 0o777 == 0o600
    assert table["token"] not in (tmp_path / "dovecote.toml").read_text()


def test_init_asks_and_keeps_secrets_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal it asks; secrets go to a private .env, and existing lines are not written again."""
    for name in ("OPENAI_API_KEY", "DOVECOTE_CHANNELS__TELEGRAM__TOKEN"):
        monkeypatch.delenv(name, raising=False)
    typed = ["openai:loopback", "http://127.0.0.1:1/v1", "sk-typed", ""]
    assert "Write the files nevertheless?" in run_on_terminal(["init"], [*typed, "n"], tmp_path)
    assert not list(tmp_path.iterdir())
    typed = [*typed[:3], "telegram", f"1:{'A' * 35}"]
    run_on_terminal(["init", "--no-test"], typed, tmp_path)
    dotenv = tmp_path / ".env"
    assert dotenv.stat().st_mode & 0o777 == 0o600
    assert "OPENAI_API_KEY='sk-typed'" in dotenv.read_text().splitlines()
    assert "sk-typed" not in (tmp_path / "dovecote.toml").read_text()
    (tmp_path / "dovecote.toml").unlink()
    before = dotenv.read_text()
    assert "already sets" in run_on_terminal(["init", "--no-test"], typed, tmp_path)
    assert dotenv.read_text() == before


def run_on_terminal(words: list[str], typed: list[str], directory: Path) -> str:
    """Run a command on a terminal, type a line at each prompt, and return what it showed."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "gateway", *words],
        cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(theirs)
    shown, answers, seen = b"", iter(typed), 0
    with suppress(OSError):  # Linux reports the end of the other side as an error
        while piece := os.read(ours, 4096):
            shown += piece
            if shown[seen:].endswith(b": "):
                os.write(ours, f"{next(answers)}\n".encode())
                seen = len(shown)
    os.close(ours)
    assert child.wait(60) in {0, 1}
    return shown.decode(errors="replace")


def test_config_show_masks_secrets(run: Run) -> None:
    """`config show` prints JSON without a secret in it."""
    result = run("config", "show", DOVECOTE_ADMIN_KEY="canary-canary", DOVECOTE_NATS_URL="nats://u:canary@h")
    assert json.loads(result.stdout)["admin_key"] == "***"
    assert "canary" not in result.stdout


def test_migrations_are_reported_and_applied(run: Run, tmp_path: Path) -> None:
    """`migrate status` fails until `migrate up` has run, and makes no file."""
    assert run("migrate", "status", "--data", str(tmp_path / "d")).exit_code == 1
    assert not (tmp_path / "d").exists()
    assert run("migrate", "up", "--data", str(tmp_path / "d")).exit_code == 0
    result = run("migrate", "status", "--data", str(tmp_path / "d"), "--json")
    assert json.loads(result.stdout)["up_to_date"] is True


def test_a_database_that_is_none(run: Run, tmp_path: Path) -> None:
    """A file that is no database is one line and exit code 1."""
    (tmp_path / "dovecote.db").write_bytes(b"not a database at all" * 100)
    result = run("migrate", "status", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "the database cannot be used" in result.stderr


def test_doctor_finds_nothing_wrong_here(run: Run, tmp_path: Path) -> None:
    """On a machine that runs the tests nothing else fails, and the checks are JSON on demand."""
    result = run("doctor", "--quick", "--json", "--data", str(tmp_path), DOVECOTE_PORT="0")
    checks = json.loads(result.stdout)
    wrong = {check["subject"] for check in checks if check["state"] == "failed"}
    assert wrong <= {"host isolation"}  # some machines that run tests forbid namespaces
    assert {"settings", "disk", "database", "nats-server", "clock", "packages"} <= {
        c["subject"] for c in checks
    }


def test_doctor_reports_every_problem(run: Run, tmp_path: Path) -> None:
    """A misspelt variable and a directory that is none are findings with a remedy, exit code 1."""
    result = run("doctor", DOVECOTE_PROT="1", DOVECOTE_PORT="x")
    assert result.exit_code == 1
    assert result.stdout.count("✗") == 2
    (tmp_path / "file").write_text("")
    result = run("doctor", "--data", str(tmp_path / "file"), DOVECOTE_NATS_URL="nats://127.0.0.1:1")
    assert result.exit_code == 1
    assert "✗ data directory" in result.stdout
    assert "✗ nats" in result.stdout


ALL_WRONG = """
port = 99999
[agent]
model = "openai:gpt-4"
[channels.telegram]
tokn = "x"
[agents.help]
instrctions = "x"
[agents.own]
model = "entry:missing"
[schedules.daily]
conversation = "x"
text = "x"
cron = "99 * * * *"
"""


@pytest.mark.parametrize("words", ["config check", "serve", "doctor --quick"])
def test_problems_of_settings_hide_none_of_models_and_records(
    run: Run, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run names every problem: of settings, of channels, of the model and of tables of records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "dovecote.toml").write_text(ALL_WRONG)
    result = run(*words.split())
    wanted = [
        "port = 99999 (dovecote.toml): ",
        "channels.telegram.token (dovecote.toml): is required",
        "channels.telegram.tokn (dovecote.toml): there is no such setting. Did you mean token?",
        "/agents/help/instrctions: there is no such key; did you mean instructions?",
        "/schedules/daily/cron: ",
    ]
    if words != "doctor --quick":  # which has a check of its own for models
        wanted.append('agent.model is "openai:gpt-4": OPENAI_API_KEY is not set')
        wanted.append('agents.own.model is "entry:missing": ')
    assert [text for text in wanted if result.output.count(text) != 1] == [], result.output
    assert result.exit_code == (1 if words == "doctor --quick" else 2)


def test_a_key_that_is_misspelt_is_the_only_problem_of_its_model(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is not said to lack a key that the operator gave with a mistake."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "dovecote.toml").write_text('opnai_api_key = "x"\n[agent]\nmodel = "openai:gpt-4"\n')
    assert len(run("config", "check").stderr.splitlines()) == 1


@pytest.mark.parametrize("is_migrated", [False, True])
def test_doctor_finds_a_database_that_is_left_behind(run: Run, tmp_path: Path, *, is_migrated: bool) -> None:
    """A new database beside the file of the data directory is what `serve` refuses."""
    run("migrate", "up", "--data", str(tmp_path))
    elsewhere = {"DOVECOTE_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'other.db'}"}
    if is_migrated:
        run("migrate", "up", "--data", str(tmp_path), **elsewhere)
    result = run("doctor", "--quick", "--data", str(tmp_path), DOVECOTE_PORT="0", **elsewhere)
    assert result.exit_code == 1, result.output
    assert f"no gateway has run on it, and {tmp_path / 'dovecote.db'} has data" in result.stdout


@pytest.mark.parametrize(
    ("name", "kind"),
    [("key", "file"), ("secret.key", "file"), ("dovecote.db", "file"), ("logs", "directory")],
)
def test_doctor_finds_entries_of_the_wrong_kind(run: Run, tmp_path: Path, name: str, kind: str) -> None:
    """What `serve` refuses in the data directory is a failed check with the path and a remedy."""
    make = (tmp_path / name).mkdir if kind == "file" else (tmp_path / name).touch
    make()
    result = run("doctor", "--quick", "--data", str(tmp_path), DOVECOTE_PORT="0")
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("✗ data directory")]
    assert f"{tmp_path / name} is a " in line
    assert f"but must be a {kind} → Move it away" in line
    assert "Traceback" not in result.output


async def test_a_sqlite_file_without_its_directory_is_explained(tmp_path: Path) -> None:
    """Doctor, `migrate up` and `serve` name the directory that does not exist, without a traceback."""
    (tmp_path / "dovecote.toml").write_text('database_url = "sqlite:////nope/x.db"\n')
    at = ("--data", str(tmp_path / "data"))
    for words, expected in (("doctor --quick", 1), ("migrate up", 1), ("serve --port 0", 2)):
        code, output, errors = await run_to_end(*words.split(), *at, cwd=tmp_path)
        assert code == expected, output + errors
        assert "there is no directory /nope" in output + errors
        assert "create it for this user, or correct the path" in output + errors
        assert "start that server" not in errors
        assert "Exception in thread" not in errors


@pytest.mark.parametrize(
    "setting", ['database_url = "postgresql://dovecote@127.0.0.1:1/gw"', 'nats_url = "nats://127.0.0.1:1"']
)
async def test_a_start_before_its_servers_is_one_that_a_supervisor_repeats(
    tmp_path: Path, setting: str
) -> None:
    """The exit code is not that of wrong settings, after which the unit for systemd starts nothing."""
    (tmp_path / "dovecote.toml").write_text(f"{setting}\n")
    unit = (Path(__file__).parents[3] / "deploy" / "systemd" / "dovecote.service").read_text()
    assert "Restart=always\n" in unit
    code, _output, errors = await run_to_end("serve", "--port", "0", "--data", "data", cwd=tmp_path)
    assert code == 1, errors
    assert "start that server or correct the URL" in errors
    assert f"RestartPreventExitStatus={code}\n" not in unit


async def test_an_option_of_serve_selects_the_format_of_the_log(tmp_path: Path) -> None:
    """With `--log-format json` each line is an object; another format is refused with the allowed ones."""
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "logs").touch()  # it ends the start
    words = ("serve", "--port", "0", "--data", str(tmp_path / "data"), "--log-format")
    _code, output, errors = await run_to_end(*words, "json", cwd=tmp_path)
    first = (output + errors).splitlines()[0]
    assert json.loads(first)["event"] == "gateway.starting"
    code, output, errors = await run_to_end(*words, "xml", cwd=tmp_path)
    assert code == 2
    assert 'log_format = \'xml\' (--log-format): must be "console" or "json"' in errors


@pytest.mark.parametrize("target", ["{data}/../file/copy", "/proc/copy"])
def test_a_copy_that_cannot_be_created_is_explained(run: Run, tmp_path: Path, target: str) -> None:
    """The error of `backup` names the directory, the reason and what to choose."""
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "file").touch()
    where = target.format(data=data)
    result = run("backup", where, "--data", str(data))
    assert result.exit_code == 1
    assert f"dovecote: DIR = {where} cannot be created: " in result.stderr
    assert "choose a path that this user can write" in result.stderr


def test_listen_refuses_a_wrong_secret(run: Run) -> None:
    """`webhooks listen` needs a secret of the right form."""
    assert run("webhooks", "listen", "--secret", "whsec_!").exit_code == 2


@pytest.mark.parametrize("command", [("config", "check"), ("serve",), ("doctor",)])
def test_a_model_without_its_key_is_reported_before_anything_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Field, value and remedy are in one line for the model and for each fallback; nothing is started."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    data = tmp_path / "data"
    models = {"DOVECOTE_AGENT__MODEL": "anthropic:a", "DOVECOTE_AGENT__FALLBACK": "ollama:o,openai:b"}
    done = run(*command, "--data", str(data), **models)
    assert done.exit_code == (1 if command == ("doctor",) else 2)
    said = (done.stdout + done.stderr).splitlines()
    (first,) = [line for line in said if 'agent.model is "anthropic:a"' in line]
    (second,) = [line for line in said if 'agent.fallback is "openai:b"' in line]
    assert "ANTHROPIC_API_KEY is not set" in first
    assert "OPENAI_API_KEY is not set" in second
    assert not data.exists()


WRONG_TABLES = """
[agents.coder]
model = "pigeon"
color = "red"

[sandboxes.heavy]
provider = "e2b"
memoryLimit = 2048

[workspaces.repo]
store = "attic"

[credentials.git]
kind = "header"

[schedules.report]
conversation = "reports"
text = "Report."
cron = "61 * * * *"
"""


@pytest.mark.parametrize("command", [("config", "check"), ("serve",), ("doctor",)])
def test_every_wrong_table_is_reported_before_anything_starts(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Each problem has a line with the key's place; nothing is started."""
    (tmp_path / "dovecote.toml").write_text(WRONG_TABLES)
    data = tmp_path / "data"
    done = run(*command, "--data", str(data))
    assert done.exit_code == (1 if command == ("doctor",) else 2)
    said = (done.stdout + done.stderr).splitlines()
    for place in (
        *("agents/coder/model", "agents/coder/color", "sandboxes/heavy/memoryLimit", "workspaces/repo/store"),
        *("credentials/git/host", "schedules/report/cron"),
    ):
        assert len([line for line in said if f": /{place}: " in line]) == 1, place
    assert not data.exists()


async def test_a_table_that_refers_to_nothing_ends_the_start_with_a_line(tmp_path: Path) -> None:
    """Whether a record exists depends on the database: `serve` names the key's place and exits with 2."""
    (tmp_path / "dovecote.toml").write_text('[agents.coder]\nmodel = "builtin:shell"\nsandbox = "heavy"\n')
    words = ("serve", "--data", str(tmp_path / "data"), "--port", "0")
    code, _output, errors = await run_to_end(*words, cwd=tmp_path)
    line = "dovecote: /agents/coder/sandbox: there is no sandbox 'heavy' in this account"
    assert (errors.splitlines()[-1], code) == (line, 2)


def test_a_process_that_performs_no_turns_needs_no_model_key(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingress replica may do without the vendors' keys."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = run("config", "check", DOVECOTE_AGENT__MODEL="anthropic:a", DOVECOTE_ROLES="ingress")
    assert done.exit_code == 0, done.stderr


def test_a_database_that_would_be_left_behind_is_a_warning(run: Run, tmp_path: Path) -> None:
    """`config check` connects to no database, so it names the file and when a start is refused."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "dovecote.db").write_bytes(b"rows")
    url = "postgresql+psycopg://nobody@127.0.0.1:1/new"
    done = run("config", "check", "--data", str(data), DOVECOTE_DATABASE_URL=url)
    assert done.exit_code == 0, done.stderr
    assert f"warning: {data / 'dovecote.db'} is not the database of database_url" in done.stderr
    assert "dovecote migrate copy" in done.stderr
    assert "warning" not in run("config", "check", "--data", str(data)).stderr
