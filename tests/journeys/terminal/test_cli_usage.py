"""The command line: its help, exit codes, output for users and programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from fake_gateway import FakeGateway
from gateway.config.load import load

COMMANDS = """serve chat doctor backup init apply logs version tail trace
    migrate,up migrate,status upgrade,check config,show config,check config,schema
    jobs,list jobs,show jobs,logs jobs,stop approvals,list approvals,approve approvals,deny
    turns,list turns,show turns,retry
    conversations,list conversations,show conversations,rename conversations,rm
    conversations,handover status usage audit accounts,list accounts,show accounts,add accounts,rm
    agents,show workspaces,show skills,show files,ls jobs,logs turns,log schedules,list memories,list
    deliveries,list deliveries,show deliveries,retry deliveries,drop
    webhooks,add webhooks,list webhooks,test webhooks,rotate webhooks,listen
    webhooks,enable webhooks,replay webhooks,rm
    channels,list channels,add channels,test channels,pair channels,pairings channels,unpair
    sandboxes,list sandboxes,rm
    keys,create keys,list keys,revoke"""

LISTS = {
    "jobs list": "/jobs",
    "approvals list": "/approvals",
    "deliveries list": "/deliveries",
    "webhooks list": "/accounts/me/webhooks",
    "channels list": "/accounts/me/channels",
    "sandboxes list": "/sandboxes",
    "keys list": "/accounts/me/keys",
    "agents list": "/accounts/me/agents",
    "workspaces list": "/accounts/me/workspaces",
    "skills list": "/accounts/me/skills",
    "schedules list": "/accounts/me/schedules",
    "triggers list": "/accounts/me/triggers",
    "accounts list": "/accounts",
}

Run = Callable[..., Result]


@pytest.mark.parametrize("command", COMMANDS.split())
def test_every_command_explains_itself(run: Run, command: str) -> None:
    """Each command of the contract is there and has help."""
    result = run(*command.split(","), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m gateway` is the same program, and no command at all is wrong usage."""
    for words, code in ((["version"], 0), (["no-such-command"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *words], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == code


@pytest.mark.parametrize(
    "words",
    [
        "nothing",
        "jobs nothing",
        "jobs list --no-such",
        "jobs show",
        "webhooks listen --port x",
        "webhooks replay x",
    ],
)
def test_wrong_usage_is_two(run: Run, words: str) -> None:
    """Unknown commands and options, missing arguments and wrong types end with exit code 2."""
    assert run(*words.split()).exit_code == 2


@pytest.mark.parametrize(
    "words", [*LISTS, "chat hello", "tail c", "trace msg_1", "jobs stop job_1", "keys create k"]
)
def test_no_gateway_is_three(run: Run, words: str) -> None:
    """Without a gateway, one line on stderr reports it, and the exit code is 3."""
    result = run(*words.split(), "--url", "http://127.0.0.1:1")
    assert result.exit_code == 3
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "no gateway answers at http://127.0.0.1:1" in line


def test_wrong_settings_are_two(run: Run) -> None:
    """Every command reports all problems of the settings and ends with exit code 2."""
    result = run("jobs", "list", DOVECOTE_PROT="1", DOVECOTE_PORT="x")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize("words", LISTS)
def test_every_list_is_json_on_demand(run: Run, gateway: FakeGateway, words: str) -> None:
    """`--json` prints the whole list, whatever the page size of the gateway."""
    items = [{"id": f"x_{number}", "state": "pending", "name": "n"} for number in range(5)]
    gateway.lists[LISTS[words]] = items
    result = run(*words.split(), "--json", "--url", gateway.url)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == items


@pytest.mark.parametrize("words", LISTS)
def test_every_list_is_a_table_for_people(run: Run, gateway: FakeGateway, words: str) -> None:
    """Without it a table shows a line for each item; terminal control characters are blotted out."""
    gateway.lists[LISTS[words]] = [{"id": "x_1", "state": "pending", "name": "a\x1b[2Jb", "command": "ls"}]
    result = run(*words.split(), "--url", gateway.url)
    assert "x_1" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("words", LISTS)
def test_an_empty_list_says_so(run: Run, gateway: FakeGateway, words: str) -> None:
    """An empty list is a text for users and an empty array for programs."""
    gateway.lists[LISTS[words]] = []
    assert len(run(*words.split(), "--url", gateway.url).stdout.splitlines()) == 1
    assert json.loads(run(*words.split(), "--json", "--url", gateway.url).stdout) == []


def test_a_list_shows_which_channels_are_paused(run: Run, gateway: FakeGateway) -> None:
    """Otherwise nothing in it says why a channel receives nothing."""
    gateway.lists["/accounts/me/channels"] = [{"id": "chn_1", "paused": True, "managed": False}]
    assert "paused" in run("channels", "list", "--url", gateway.url).stdout


def test_the_operators_key_is_for_accounts(run: Run, gateway: FakeGateway) -> None:
    """DOVECOTE_ADMIN_KEY is sent by commands on accounts alone; a refusal names it."""
    gateway.lists["/accounts"] = gateway.lists["/jobs"] = []
    keys = {"DOVECOTE_ADMIN_KEY": "operator-key", "DOVECOTE_KEY": "dvk_x"}
    for words in ("accounts list", "jobs list"):
        assert run(*words.split(), "--url", gateway.url, **keys).exit_code == 0
    assert [one[3]["Authorization"] for one in gateway.requests] == ["Bearer operator-key", "Bearer dvk_x"]
    gateway.responses["GET", "/accounts/ada"] = (401, {"title": "Unauthorized"})
    assert "DOVECOTE_ADMIN_KEY" in run("accounts", "show", "ada", "--url", gateway.url).stderr


@pytest.mark.parametrize("kind", ["accounts", "agents", "channels"])
def test_a_deletion_without_a_terminal_needs_consent(run: Run, gateway: FakeGateway, kind: str) -> None:
    """Without a terminal, what others depend on is deleted only with --yes."""
    asked = run(kind, "rm", "ada", "--url", gateway.url)
    assert (asked.exit_code, "pass --yes" in asked.stderr) == (2, True)
    assert not gateway.requests
    for path in ("/accounts/ada", f"/accounts/me/{kind}/ada"):
        gateway.responses["DELETE", path] = (204, "")
    assert run(kind, "rm", "ada", "--yes", "--url", gateway.url).exit_code == 0
    assert {method for method, *_ in gateway.requests} == {"DELETE"}


def test_a_nats_user_reads_one_account(run: Run, gateway: FakeGateway) -> None:
    """The account's id, not the typed name, is in the subject; each user has a key pair of its own."""
    gateway.responses["GET", "/accounts/ada"] = (200, {"id": "acc_1", "name": "ada"})
    users = []
    for _ in range(2):
        made = run("accounts", "nats-user", "ada", "--json", "--url", gateway.url, DOVECOTE_ADMIN_KEY="k")
        assert made.exit_code == 0, made.stderr
        users.append(json.loads(made.stdout))
    first, second = users
    assert first["subject"] == "dovecote.acc_1.>"
    assert f'subscribe: {{ allow: ["{first["subject"]}"] }}' in first["entry"]
    assert first["nkey"] in first["entry"]
    assert first["seed"] not in first["entry"]
    assert (first["seed"][:2], first["nkey"][:1]) == ("SU", "U")
    assert first["seed"] != second["seed"]


def test_the_status_is_a_table_or_json(run: Run, gateway: FakeGateway) -> None:
    """It shows what is wrong, what is at work and which channels do not receive; not ready is exit code 1."""
    page = {"items": [{"id": "x"}] * 200, "next": "200"}
    gateway.responses["GET", "/turns"] = (200, page)
    for path in ("/jobs", "/approvals", "/deliveries"):
        gateway.lists[path] = []
    gateway.lists["/accounts/me/channels"] = [{"id": "chn_1", "name": "telegram"}]
    state = {"state": "trouble", "reason": "the token is wrong"}
    gateway.responses["GET", "/accounts/me/channels/chn_1/status"] = (200, state)
    checks = {"database": "ok", "broker": "not connected"}
    for status, code, word in ((503, 1, "not ready"), (200, 0, "ready")):
        gateway.responses["GET", "/readyz"] = (status, {"status": word, "checks": checks, "degraded": {}})
        shown = run("status", "--url", gateway.url)
        assert shown.exit_code == code
        assert f"{word}  {gateway.url}" in shown.stdout
    assert "broker: not connected" in shown.stdout
    assert "200+ running · 200+ queued" in shown.stdout
    assert "telegram: the token is wrong" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    found = json.loads(run("status", "--json", "--url", gateway.url).stdout)
    assert found["counts"]["jobs"] == {"running": "0"}
    assert found["channels"] == [{"name": "telegram", **state}]
    watched = run("status", "--watch", "--url", gateway.url)
    assert (watched.exit_code, "needs a terminal" in watched.stderr) == (2, True)


def test_the_status_says_why_answers_wait(run: Run, gateway: FakeGateway) -> None:
    """Each reason is there once, so that an operator need not look through the deliveries."""
    reason = "send: Missing Permissions (50013): grant it to the bot's role"
    for path in ("/turns", "/jobs", "/approvals", "/accounts/me/channels"):
        gateway.lists[path] = []
    gateway.lists["/deliveries"] = [
        {"id": one, "error": error} for one, error in (("1", reason), ("2", None))
    ]
    gateway.responses["GET", "/readyz"] = (200, {"status": "ready", "checks": {}, "degraded": {}})
    shown = run("status", "--url", gateway.url).stdout
    assert "deliveries 2 retrying · 2 parked · 2 dead" in shown
    assert shown.count(reason) == 1
    assert json.loads(run("status", "--json", "--url", gateway.url).stdout)["reasons"] == [reason]


def test_a_table_fits_eighty_columns(run: Run, gateway: FakeGateway) -> None:
    """Ids stay whole, times are distances, and nothing is coloured in a pipe."""
    turn = {"id": f"trn_{'0' * 28}", "state": "failed", "attempt": 3, "created_at": "2020-01-31T09:00:00Z"}
    gateway.lists["/turns"] = [{**turn, "input": "a question " * 20, "error": "the model is away " * 9}]
    shown = run("turns", "list", "--url", gateway.url, COLUMNS="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert str(turn["id"]) in shown
    assert " d ago" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "words", ["agents rm --yes ..", "workspaces show .", "sandboxes rm --yes ..", "keys revoke"]
)
def test_an_id_names_no_other_resource(run: Run, gateway: FakeGateway, words: str) -> None:
    """`..` in place of an id would delete the account: `/accounts/me/agents/..` is `/accounts/me`."""
    last = [""] if words == "keys revoke" else []
    gateway.responses["DELETE", "/accounts/me/"] = gateway.responses["DELETE", "/accounts/me/keys/"] = (
        204,
        "",
    )
    result = run(*words.split(), *last, "--url", gateway.url)
    assert result.exit_code == 2
    assert "is neither an id nor a name" in result.stderr
    assert not gateway.requests


HOSTILE = "bot\u202e\u009b31m"
"""A name that turns the following text around, and has a terminal change its colours."""


def test_a_name_does_not_command_the_terminal(run: Run, gateway: FakeGateway) -> None:
    """What is printed of a name, also in an error and as JSON, has no control characters."""
    path = f"/accounts/me/webhooks/{HOSTILE}"
    gateway.responses["DELETE", path] = (204, "")
    gateway.responses["GET", path] = (200, {"id": HOSTILE})
    done = run("webhooks", "rm", HOSTILE, "--url", gateway.url)
    assert (done.exit_code, done.stdout) == (0, "bot��31m deleted\n")
    failed = run("tail", HOSTILE, "--url", gateway.url)
    assert "bot��31m" in failed.stderr
    shown = run("webhooks", "show", HOSTILE, "--json", "--url", gateway.url).stdout
    assert (shown.replace("\n", "").isprintable(), json.loads(shown)) == (True, {"id": HOSTILE})


def test_a_name_that_is_not_utf_8_is_wrong_usage(run: Run, gateway: FakeGateway) -> None:
    """Such bytes reach a command as halves of surrogate pairs, which no URL can have."""
    result = run("webhooks", "show", "caf\udce9", "--url", gateway.url)
    assert (result.exit_code, "not UTF-8" in result.stderr, gateway.requests) == (2, True, []), result.stderr


def test_a_problem_is_one_line(run: Run, gateway: FakeGateway) -> None:
    """A refusal is one line with its pointers, exit code 1."""
    problem = {
        "title": "Invalid",
        "detail": "look below",
        "errors": [{"pointer": "/url", "detail": "is no URL"}],
    }
    gateway.responses["POST", "/accounts/me/webhooks"] = (422, problem)
    result = run("webhooks", "add", "x", "--url", gateway.url)
    assert result.exit_code == 1
    assert result.stderr == "dovecote: Invalid: look below: /url is no URL\n"


@pytest.mark.parametrize("answer", [(500, "oops"), (302, ""), (401, {"title": "Unauthorized"})])
def test_other_answers_fail_plainly(run: Run, gateway: FakeGateway, answer: tuple[int, Any]) -> None:
    """A server that is no gateway, a redirect and a wrong key are one line and exit code 1."""
    gateway.responses["GET", "/jobs/job_1"] = answer
    result = run("jobs", "show", "job_1", "--url", gateway.url)
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


def test_job_logs_are_printed_as_they_are(run: Run, gateway: FakeGateway) -> None:
    """Logs are text, with nothing added but a final newline."""
    gateway.responses["GET", "/jobs/job_1/logs"] = (200, {"output": "one\ntwo"})
    assert run("jobs", "logs", "job_1", "--url", gateway.url).stdout == "one\ntwo\n"


def test_conversations_are_listed_with_the_names_of_people(run: Run, gateway: FakeGateway) -> None:
    """A person without a known name has the id; keys are no persons; `--json` has ids and names."""
    preview = {"people": ["id-of-ann", "key_1", "0815"], "people_names": ["Ann", "key_1", "0815"]}
    gateway.lists["/conversations"] = [{"id": "cnv_1", "title": "hello", "preview": preview}]
    shown = run("conversations", "list", "--url", gateway.url)
    assert "Ann, 0815" in shown.stdout
    assert "id-of-ann" not in shown.stdout
    listed = json.loads(run("conversations", "list", "--json", "--url", gateway.url).stdout)
    assert listed[0]["preview"] == preview


def test_the_data_directory_leads_to_the_gateway(run: Run, gateway: FakeGateway, tmp_path: Path) -> None:
    """Without options the address and the key are those the local gateway wrote down."""
    (tmp_path / "url").write_text(f"{gateway.url}\n")
    (tmp_path / "key").write_text("dvk_local\n")
    gateway.lists["/jobs"] = []
    assert run("jobs", "list", "--data", str(tmp_path)).exit_code == 0
    assert gateway.requests[0][3]["Authorization"] == "Bearer dvk_local"


def test_a_found_key_stays_at_home(tmp_path: Path) -> None:
    """The key of the data directory is not sent to another address."""
    from gateway.cli.connection import locate_gateway

    (tmp_path / "key").write_text("dvk_local\n")
    (tmp_path / "url").write_text("http://10.0.0.5:8080\n")
    keys = {
        url: locate_gateway(load({"data_dir": tmp_path, "url": url}, env={}, directory=tmp_path)).key
        for url in (
            "http://evil.example",
            "http://127.0.0.1:9",
            "http://[::1]:9",
            "http://10.0.0.5:8080",
            None,
        )
    }
    assert [url for url, key in keys.items() if key is None] == ["http://evil.example"]
    given = load(
        {"data_dir": tmp_path, "url": "http://far.example", "key": "dvk_k"}, env={}, directory=tmp_path
    )
    assert locate_gateway(given).key == "dvk_k"


@pytest.mark.parametrize("name", ["dovecote.toml", ".env"])
@pytest.mark.parametrize("words", ["jobs list", "channels test bot", "channels list"])
def test_a_foreign_directory_does_not_choose_where_the_key_goes(
    run: Run, tmp_path: Path, gateway: FakeGateway, name: str, words: str
) -> None:
    """No file of the working directory names an address, a key or a data directory for a client command."""
    evil, share = tmp_path / "evil", tmp_path / "share" / "dovecote"
    for directory, key in ((evil, "dvk_theirs"), (share, "dvk_local")):
        directory.mkdir(parents=True)
        (directory / "key").write_text(f"{key}\n")
    (evil / "url").write_text(f"{gateway.url}\n")
    given = {"url": gateway.url, "public_url": gateway.url, "data_dir": str(evil)}
    lines = {
        "dovecote.toml": [f'{key} = "{value}"' for key, value in given.items()],
        ".env": [f"DOVECOTE_{key.upper()}={value}" for key, value in given.items()],
    }
    (tmp_path / name).write_text("\n".join(lines[name]))
    (share / "url").write_text("http://127.0.0.1:9\n")
    result = run(*words.split(), DOVECOTE_KEY="dvk_mine")
    assert gateway.requests == []
    assert result.exit_code == 3, result.output
    assert f"{name} in this directory did not choose the gateway" in result.stderr


def test_a_file_that_is_named_chooses_the_gateway(run: Run, tmp_path: Path, gateway: FakeGateway) -> None:
    """A file counts when `--config`, DOVECOTE_CONFIG or the user's configuration directory names it."""
    gateway.lists["/jobs"] = []
    (tmp_path / "dovecote.toml").write_text(f'url = "{gateway.url}"\nkey = "dvk_file"\n')
    assert run("jobs", "list", "--config", "dovecote.toml").exit_code == 0
    assert run("jobs", "list", DOVECOTE_CONFIG="dovecote.toml").exit_code == 0
    own = tmp_path / "config" / "dovecote"
    own.mkdir(parents=True)
    (tmp_path / "dovecote.toml").rename(own / "dovecote.toml")
    assert run("jobs", "list", XDG_CONFIG_HOME=str(tmp_path / "config")).exit_code == 0
    assert [request[3]["Authorization"] for request in gateway.requests] == ["Bearer dvk_file"] * 3


def test_a_gateway_reads_the_file_that_the_environment_names(run: Run, tmp_path: Path) -> None:
    """DOVECOTE_CONFIG is for every command; a file that it names must exist."""
    (tmp_path / "other.toml").write_text("port = 4242\n")
    shown = run("config", "show", DOVECOTE_CONFIG="other.toml")
    assert json.loads(shown.stdout)["port"] == 4242
    missing = run("config", "show", DOVECOTE_CONFIG="missing.toml")
    assert missing.exit_code == 2
    assert "there is no such file" in missing.stderr
