"""What settings accept, which source wins, and how everything wrong is reported at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from gateway.config.load import load
from gateway.config.setting_types import MIN_KEY_LENGTH
from gateway.config.settings import InvalidSettings, Role, SettingProblem, Settings, masked
from gateway.config.sources import SettingSources, known_keys, mask, variable_name

LONG = "k" * MIN_KEY_LENGTH
Read = Callable[..., Settings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a reader of settings whose file, `.env` and environment are given as text and mapping."""

    def read_settings(
        flags: Mapping[str, Any] | None = None, *, toml: str = "", dotenv: str = "", **env: str
    ) -> Settings:
        if toml:
            (tmp_path / "dovecote.toml").write_text(toml)
        if dotenv:
            (tmp_path / ".env").write_text(dotenv)
        return load(flags, env=env, directory=tmp_path)

    return read_settings


def problems_of(read: Callable[[], object]) -> tuple[SettingProblem, ...]:
    """Return what is wrong with the settings that `read` reads."""
    with pytest.raises(InvalidSettings) as caught:
        read()
    return caught.value.problems


def test_defaults_need_nothing(read: Read) -> None:
    """Without any source the gateway listens on loopback with every role and the shell agent."""
    settings = read()
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.roles == frozenset(Role)
    assert settings.agent.model == "builtin:shell"
    assert settings.sandbox.provider == "host"
    assert settings.nats_url is None
    assert settings.database_url is None
    assert settings.webhook_schedule == (5, 300, 1800, 7200, 18000, 36000, 36000)
    assert settings.warnings() == ()


@given(given_in=st.sets(st.sampled_from(["flag", "variable", "dotenv", "file"]), min_size=1))
def test_the_strongest_source_wins(given_in: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A flag beats a variable, which beats `.env`, which beats the file."""
    directory = tmp_path_factory.mktemp("settings")
    if "file" in given_in:
        (directory / "dovecote.toml").write_text("port = 4")
    if "dotenv" in given_in:
        (directory / ".env").write_text("DOVECOTE_PORT=3\n")
    env = {"DOVECOTE_PORT": "2"} if "variable" in given_in else {}
    flags = {"port": 1 if "flag" in given_in else None}
    order = {"flag": 1, "variable": 2, "dotenv": 3, "file": 4}
    settings = load(flags, env=env, directory=directory)
    assert settings.port == min(order[source] for source in given_in)


def test_nested_variables_reach_inner_keys(read: Read) -> None:
    """Two underscores lead into tables, and the rest of a table stays as the file has it."""
    settings = read(
        toml='[agent]\nmodel = "openai:a"\ninstructions = "Be brief."', DOVECOTE_AGENT__MODEL="anthropic:b"
    )
    assert settings.agent.model == "anthropic:b"
    assert settings.agent.instructions == "Be brief."


def test_limits_are_spelt_either_way(read: Read) -> None:
    """A limit's public camel-case name and its field name are one key, and the stronger source wins."""
    toml = "[agent.limits]\nturnTimeoutSeconds = 10\nrequests = 3"
    assert read(toml=toml).agent.limits.turn_timeout == 10
    settings = read(toml=toml, DOVECOTE_AGENT__LIMITS__TURN_TIMEOUT="20")
    assert (settings.agent.limits.turn_timeout, settings.agent.limits.requests) == (20, 3)


def test_lists_are_written_with_commas(read: Read) -> None:
    """Roles, networks, origins, models and delays accept comma-separated variables."""
    settings = read(
        DOVECOTE_ROLES="ingress, turns",
        DOVECOTE_EGRESS_ALLOW="10.0.0.0/8,fd00::/8",
        DOVECOTE_ALLOWED_ORIGINS="https://Chat.example.org",
        DOVECOTE_AGENT__FALLBACK="openai:a,google:b",
        DOVECOTE_WEBHOOK_SCHEDULE="1,2.5",
        DOVECOTE_SECRET_KEYS=f"{LONG}1,{LONG}2",
    )
    assert settings.roles == {Role.INGRESS, Role.TURNS}
    assert settings.egress_allow == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert settings.allowed_origins == ("https://chat.example.org",)
    assert settings.agent.fallback == ("openai:a", "google:b")
    assert settings.webhook_schedule == (1.0, 2.5)
    assert [key.get_secret_value() for key in settings.secret_keys] == [f"{LONG}1", f"{LONG}2"]


def test_every_role_by_one_word(read: Read) -> None:
    """`all` means every role."""
    assert read({"roles": "all"}).roles == frozenset(Role)


@pytest.mark.parametrize(
    ("given", "runs_with"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgres://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////var/d.db", "sqlite+aiosqlite:////var/d.db"),
        ("sqlite:///d.db", "sqlite+aiosqlite:///d.db"),
    ],
)
def test_database_urls_get_their_driver(read: Read, given: str, runs_with: str) -> None:
    """The usual database URLs are run with the drivers we have."""
    settings = read(DOVECOTE_DATABASE_URL=given)
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == settings.database == runs_with


def test_the_database_is_in_the_data_directory(read: Read, tmp_path: Path) -> None:
    """Without a URL the database is a file of the data directory."""
    assert read({"data_dir": tmp_path}).database == f"sqlite+aiosqlite:///{tmp_path}/dovecote.db"
    unusual = tmp_path / "50%20 of?it #ü"
    assert make_url(read({"data_dir": unusual}).database).database == str(unusual / "dovecote.db")


def test_vendors_variables_are_taken(read: Read) -> None:
    """Keys and places are also read from the variables that vendors made usual."""
    settings = read(
        OPENAI_API_KEY="o", ANTHROPIC_API_KEY="a", GEMINI_API_KEY="g", OLLAMA_HOST="127.0.0.1:11434",
        E2B_API_KEY="e", DAYTONA_SERVER_URL="https://d.example", DOCKER_HOST="unix:///run/docker.sock",
        SANDBOX_PROVIDER="host", NATS_BIN="/opt/nats-server", UNRELATED="x",
    )  # fmt: skip
    assert settings.vendors.openai_api_key is not None
    assert settings.vendors.openai_api_key.get_secret_value() == "o"
    assert settings.vendors.ollama_url == "http://127.0.0.1:11434"
    assert settings.sandbox.for_provider("e2b") == {"api_key": "e"}
    assert settings.sandbox.for_provider("daytona") == {"api_url": "https://d.example"}
    assert settings.sandbox.for_provider("docker") == {"host": "unix:///run/docker.sock"}
    assert settings.nats_bin == Path("/opt/nats-server")


def test_our_names_beat_the_vendors(read: Read) -> None:
    """A `DOVECOTE_*` variable wins over the vendor's, and a blank vendor's variable is as good as none."""
    settings = read(DOVECOTE_SANDBOX__E2B__API_KEY="ours", E2B_API_KEY="theirs", OPENAI_API_KEY=" ")
    assert settings.sandbox.for_provider("e2b") == {"api_key": "ours"}
    assert settings.vendors.openai_api_key is None


def test_all_problems_at_once(read: Read) -> None:
    """One reading names every problem, whichever source it comes from."""
    found = problems_of(
        lambda: read(
            {"host": " "},
            toml='prot = 1\n[agent]\nmodel = "gpt"\n[channels.nowhere]\ntoken = "t"',
            dotenv="DOVECOTE_LOG_FORMAT=xml\n",
            DOVECOTE_PORT="99999",
            DOVECOTE_AGNET__MODEL="x",
        )
    )
    assert {problem.key for problem in found} == {
        "host", "prot", "agent.model", "channels.nowhere.kind", "log_format", "port", "DOVECOTE_AGNET__MODEL",
    }  # fmt: skip
    sources = {problem.key: problem.source for problem in found}
    assert sources["host"] == "--host"
    assert sources["agent.model"] == "dovecote.toml"
    assert sources["log_format"] == "DOVECOTE_LOG_FORMAT in .env"
    assert sources["port"] == "DOVECOTE_PORT"
    assert all(problem.detail and problem.remedy for problem in found)


def test_a_misspelt_variable_is_reported_with_its_right_name(read: Read) -> None:
    """An unknown name of ours is refused with the nearest known one."""
    (problem,) = problems_of(lambda: read(DOVECOTE_AGNET__MODEL="x"))
    assert "DOVECOTE_AGENT__MODEL" in problem.remedy


@pytest.mark.parametrize(
    "name",
    [
        "DOVECOTE_",
        "DOVECOTE___",
        "DOVECOTE_AGENT__",
        "DOVECOTE_PORT__X",
        "dovecote_prot",
        "DOVECOTE_SANDBOX__X",
    ],
)
def test_names_that_lead_nowhere_are_refused(read: Read, name: str) -> None:
    """Empty segments, paths through a plain value and unknown names are all problems."""
    assert problems_of(lambda: read(**{name: "x"}))[0].key in {name, "sandbox.x"}


BLANKS = ["", " ", "\t"]


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize(
    "name",
    [
        "DOVECOTE_ADMIN_KEY",
        "DOVECOTE_SECRET_KEYS",
        "DOVECOTE_KEY",
        "DOVECOTE_NATS_URL",
        "DOVECOTE_DATABASE_URL",
    ],
)
def test_a_blank_secret_is_no_open_door(read: Read, name: str, blank: str) -> None:
    """A blank secret stops the gateway, instead of admitting everybody."""
    assert len(problems_of(lambda: read(**{name: blank}))) == 1


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("name", ["TOKEN", "WEBHOOK_SECRET"])
def test_a_blank_channel_secret_is_refused(read: Read, name: str, blank: str) -> None:
    """The same holds for a channel's own secrets."""
    env = {"DOVECOTE_CHANNELS__TELEGRAM__TOKEN": "123456:ABC", f"DOVECOTE_CHANNELS__TELEGRAM__{name}": blank}
    assert any(
        problem.key == f"channels.telegram.{name.lower()}" for problem in problems_of(lambda: read(**env))
    )


def test_one_blank_key_spoils_the_ring(read: Read) -> None:
    """A ring with an empty place is refused."""
    assert problems_of(lambda: read(DOVECOTE_SECRET_KEYS=f"{LONG},,{LONG}"))


def test_short_keys_are_warned_of(read: Read) -> None:
    """Guessable keys are accepted with a warning."""
    assert len(read(DOVECOTE_SECRET_KEYS="short").warnings()) == 1
    assert len(read(DOVECOTE_ADMIN_KEY="short").warnings()) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DOVECOTE_PORT", "-1"),
        ("DOVECOTE_PORT", "http"),
        ("DOVECOTE_ROLES", ""),
        ("DOVECOTE_ROLES", "cook"),
        ("DOVECOTE_NATS_URL", "http://h:4222"),
        ("DOVECOTE_NATS_URL", "nats://"),
        ("DOVECOTE_DATABASE_URL", "mysql://h/d"),
        ("DOVECOTE_DATABASE_URL", "sqlite://"),
        ("DOVECOTE_DATABASE_URL", "sqlite:///"),
        ("DOVECOTE_DATABASE_URL", "postgresql://u@h:port/d"),
        ("DOVECOTE_DATABASE_URL", "postgresql://u@a:5432,b:5432/d"),
        ("DOVECOTE_PUBLIC_URL", "bots.example.org"),
        ("DOVECOTE_PUBLIC_URL", "https://u:p@h"),
        ("DOVECOTE_PUBLIC_URL", "https://[::1"),
        ("DOVECOTE_EGRESS_ALLOW", "10.0.0.1/8"),
        ("DOVECOTE_EGRESS_ALLOW", "all"),
        ("DOVECOTE_ALLOWED_ORIGINS", "*"),
        ("DOVECOTE_ALLOWED_ORIGINS", "null"),
        ("DOVECOTE_ALLOWED_ORIGINS", "https://a.example/path"),
        ("DOVECOTE_AGENT__MODEL", "gpt"),
        ("DOVECOTE_AGENT__LIMITS__TURN_TIMEOUT", "604801"),
        ("DOVECOTE_WEBHOOK_SCHEDULE", "0"),
        ("DOVECOTE_WEBHOOK_SCHEDULE", "nan"),
        ("DOVECOTE_LEASE_TTL", "0"),
        ("DOVECOTE_TURN_WORKERS", "0"),
        ("SANDBOX_PROVIDER", "nowhere"),
        ("DOVECOTE_SANDBOX__NOWHERE__KEY", "x"),
        ("DOVECOTE_SANDBOX__HOST__NO_SUCH_KEY", "x"),
    ],
)
def test_wrong_values_are_one_problem_each(read: Read, name: str, value: str) -> None:
    """A wrong value is reported once, with its source and a remedy."""
    (problem,) = problems_of(lambda: read(**{name: value}))
    assert problem.source == name
    assert problem.remedy


def test_a_table_in_one_variable(read: Read) -> None:
    """A variable with a JSON object sets the object's keys."""
    settings = read(DOVECOTE_CHANNELS='{"telegram": {"token": "123456:ABC"}}')
    assert settings.channels["telegram"]["token"] == "123456:ABC"


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """`--config` with a file that is missing, broken or unreadable is a problem, not a default."""
    broken, binary = tmp_path / "broken.toml", tmp_path / "binary.toml"
    broken.write_text("port = ")
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none.toml", broken, binary, tmp_path):
        (problem,) = problems_of(partial(load, config=path, env={}, directory=tmp_path))
        assert problem.key == "config"
    assert "Name a file" in problem.remedy  # of the directory; it is readable already


def test_a_dotenv_that_is_no_text(tmp_path: Path) -> None:
    """A `.env` that cannot be decoded is a problem."""
    (tmp_path / ".env").write_bytes(b"DOVECOTE_PORT=\xff\xfe")
    assert problems_of(lambda: load(env={}, directory=tmp_path))[0].source == ".env"


SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=12, max_size=60)


@given(secret=SECRETS)
def test_no_secret_is_printed(secret: str) -> None:
    """Whatever is wrong with a secret, neither problems nor repr nor `show` repeat it."""
    secret = f"zq{secret}"
    directory = Path("/nowhere")
    wrong = {
        "DOVECOTE_NATS_URL": f"http://u:{secret}@h",
        "DOVECOTE_DATABASE_URL": f"mysql://u:{secret}@h/d",
        "DOVECOTE_CHANNELS__NOWHERE__BOT_TOKEN": secret,
        "DOVECOTE_PUBLIC_URL": f"ftp://u:{secret}@h",
        "DOVECOTE_VENDORS__OPENAI_API_KEE": secret,
    }
    found = problems_of(lambda: load(env=wrong, directory=directory))
    assert len(found) == len(wrong)
    assert secret not in "".join(map(str, found))
    right = {
        "DOVECOTE_ADMIN_KEY": secret,
        "DOVECOTE_NATS_URL": f"nats://u:{secret}@h",
        "OPENAI_API_KEY": secret,
        "E2B_API_KEY": secret,
        "DOVECOTE_CHANNELS__TELEGRAM__TOKEN": f"123456:{secret}",
    }
    settings = load(env=right, directory=directory)
    assert secret not in repr(settings)
    assert secret not in json.dumps(masked(settings))
    assert {secret, f"nats://u:{secret}@h", f"123456:{secret}"} <= settings.secrets()


def test_headers_and_variables_are_secrets() -> None:
    """A header or a variable of a declared record is neither shown nor logged, whatever its name."""
    env = {
        f"DOVECOTE_AGENTS__HELPER__{table}": f"zq-canary-{place}"
        for place, table in enumerate(
            ["MCP__one__HEADERS__Authorization", "MCP__two__ENV__MODE", "TOOLS__HTTP__look__HEADERS__Cookie"]
        )
    }
    settings = load(env=env, directory=Path("/nowhere"))
    assert "zq-canary" not in json.dumps(masked(settings))
    assert set(env.values()) <= settings.secrets()


def test_settings_are_fixed(read: Read) -> None:
    """A setting cannot be changed after it was read."""
    settings = read()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 1)])
def test_open_http_is_warned_of(read: Read, host: str, warned: int) -> None:
    """Plain HTTP beyond loopback is allowed with a warning; behind TLS there is none."""
    assert len(read({"host": host}).warnings()) == warned
    assert not read({"host": host, "public_url": "https://bots.example.org"}).warnings()


def test_every_key_has_a_variable_that_sets_it() -> None:
    """The name of each key's variable leads to that key."""
    layers = SettingSources(root=Settings)
    for keys in known_keys(Settings):
        layers.add_variables({variable_name(keys): "x"})
    assert layers.problems == []
    assert {tuple(key.lower() for key in keys) for keys in known_keys(Settings)} == set(layers.sources)


def test_the_schema_describes_every_key() -> None:
    """The JSON schema has a description for each key, and is JSON."""
    schema = json.loads(json.dumps(Settings.model_json_schema()))
    assert all("description" in about for about in schema["properties"].values())


@given(st.text(max_size=200))
def test_masking_takes_anything(text: str) -> None:
    """Whatever text is given for a secret, its masked form does not hold it."""
    assert mask(("admin_key",), text) in {"'***'", "''"}


@pytest.mark.parametrize("levels", [100, 900, 5_000])
def test_a_value_of_too_many_levels_is_a_problem(read: Read, levels: int) -> None:
    """In the file as in a variable it is reported with its place, and ends in no recursion."""
    tables = "{a=" * levels + "1" + "}" * levels
    lists = "[" * levels + "]" * levels
    (problem,) = problems_of(lambda: read(toml=f"agent = {tables}"))
    assert (problem.key, problem.source) == ("config", "dovecote.toml")
    assert "nested in more than 64 levels" in problem.detail
    (problem,) = problems_of(lambda: read(toml="port = 1", DOVECOTE_EGRESS_ALLOW=lists))
    assert (problem.key, problem.source) == ("egress_allow", "DOVECOTE_EGRESS_ALLOW")
    assert "nested in more than 64 levels" in problem.detail
