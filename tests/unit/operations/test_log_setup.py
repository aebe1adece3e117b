"""Logs contain no secret, whichever module writes them, and log lines are counted."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.log_setup import (
    MAX_FIELD_LENGTH,
    MAX_TRACEBACK_LENGTH,
    redact,
    set_up_logging,
)
from gateway.observability.metrics import Metrics


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Return a stream to log to, and put logging back afterwards."""
    root = logging.getLogger()
    kept, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers, root.level = kept, level
    structlog.reset_defaults()


FORMS = {
    "telegram": "https://api.telegram.org/bot123456:AAH-canary_canary_canary/sendMessage",
    "bearer": "Authorization: Bearer canary-canary.canary",
    "webhook": "whsec_canarycanarycanary==",
    "key": "dvk_canarycanarycanary",
    "slack": "xoxb-123-canary",
    "openai": "sk-canary-canary",
    "database": "postgresql+psycopg://user:canary@host/database",
}


def raise_with(text: str) -> None:
    """Fail as a library does that puts what it was given into its message."""
    raise RuntimeError(text)


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_known_forms_are_blotted_out(stream: io.StringIO, form: str, text: str) -> None:
    """A secret of a known form is gone from messages, fields and tracebacks of every logger."""
    set_up_logging("json" if form == "json" else "console", "debug", stream)
    structlog.get_logger("ours").info("calling", url=text, nested={"list": [text]})
    logging.getLogger("theirs").warning("calling %s", text)
    try:
        raise_with(text)
    except RuntimeError:
        structlog.get_logger("ours").exception("broke")
        logging.getLogger("theirs").exception("broke")
    assert "broke" in stream.getvalue()
    assert "RuntimeError" in stream.getvalue()
    assert "canary" not in stream.getvalue()


@pytest.mark.parametrize(
    "name", ["token", "bot_token", "Authorization", "api_key", "secret", "env_vars", "password"]
)
def test_secret_fields_are_never_written(stream: io.StringIO, name: str) -> None:
    """A field with a secret name is redacted, whatever it contains."""
    set_up_logging("json", "info", stream)
    structlog.get_logger().info("hello", **{name: {"plain": "canary"}}, nested={name: "canary"})
    assert "canary" not in stream.getvalue()


@given(secret=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=40))
def test_configured_secrets_are_known_by_value(secret: str) -> None:
    """What the settings hold as secret is blotted out wherever it appears."""
    secret = f"~{secret}~"
    root = logging.getLogger()
    kept, level, stream = list(root.handlers), root.level, io.StringIO()
    try:
        set_up_logging("json", "info", stream, secrets=[secret])
        logging.getLogger("theirs").warning("it is <%s>!", secret)
    finally:
        root.handlers, root.level = kept, level
        structlog.reset_defaults()
    assert json.loads(stream.getvalue())["event"] == "it is <***>!"


def test_chatty_libraries_are_quiet(stream: io.StringIO) -> None:
    """HTTP clients, which log whole URLs, are logged from WARNING on, in debug mode too."""
    set_up_logging("console", "debug", stream)
    for name in ("httpx", "httpx2", "httpcore", "sqlalchemy.engine"):
        logging.getLogger(name).info("POST https://example.org/canary")
    assert stream.getvalue() == ""


def test_lines_are_json_on_demand(stream: io.StringIO) -> None:
    """Each line of the json form is an object with time, level, logger and event."""
    set_up_logging("json", "info", stream)
    structlog.get_logger("ours").info("ready", address="http://127.0.0.1:1", turns=3, gone=None)
    line = json.loads(stream.getvalue())
    assert {"timestamp", "level", "logger"} <= set(line)
    assert (line["event"], line["address"], line["turns"]) == ("ready", "http://127.0.0.1:1", 3)


@given(st.text())
def test_ordinary_text_passes(text: str) -> None:
    """Redaction accepts any text, and changes nothing that contains no secret."""
    redact(text)
    assert (
        redact("turn trn_01 took 12:30 at http://127.0.0.1:8080/x")
        == "turn trn_01 took 12:30 at http://127.0.0.1:8080/x"
    )


def test_a_long_field_is_cut(stream: io.StringIO) -> None:
    """A field has at most `MAX_FIELD_LENGTH` characters and a note; a traceback has more."""
    set_up_logging("json", "info", stream)
    try:
        raise_with("y" * 100_000)
    except RuntimeError:
        structlog.get_logger().exception("broke", answer="x" * 10_000)
    line = json.loads(stream.getvalue())
    assert line["answer"] == "x" * MAX_FIELD_LENGTH + f"… ({10_000 - MAX_FIELD_LENGTH} more characters)"
    assert MAX_FIELD_LENGTH < len(line["exception"]) < MAX_TRACEBACK_LENGTH + 50
    assert "RuntimeError: yyy" in line["exception"]


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_cut_divides_no_secret(stream: io.StringIO, text: str) -> None:
    """Wherever the cut falls, no part of a secret stays."""
    set_up_logging("json", "info", stream, secrets=["known-canary-known"])
    for missing in range(len(text) + 25):
        before = " " * (MAX_FIELD_LENGTH - missing)
        structlog.get_logger().info("got", answer=f"{before}{text} known-canary-known {'x' * 600}")
    assert "can" not in stream.getvalue()


@pytest.mark.parametrize("before", ["", "Bot ", "key-", "M-", "x" * 100 + "-"])
def test_a_token_of_discord_is_blotted_out(before: str) -> None:
    """It is found alone, behind a name, and behind other words that a hyphen joins to it."""
    secret = "MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs"
    redacted = redact(f"token {before}{secret} was refused")
    assert "4NjIyNDgz" not in redacted
    assert "ZnCjm1XVW7" not in redacted


def test_numbers_are_served() -> None:
    """Every number is in the exposition under its public name, one registry for each process part."""
    metrics = Metrics()
    metrics.count("turns", state="completed")
    metrics.set("queue_depth", 3, queue="turns")
    text = metrics.render().decode()
    assert 'dovecote_turns_total{state="completed"} 1.0' in text
    assert 'dovecote_queue_depth{queue="turns"} 3.0' in text
    assert 'dovecote_turns_total{state="completed"} 0.0' in Metrics().render().decode()
