"""`dovecote init`: ask for a model, its key and a channel, test them, and write the settings."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.arguments import parse_settings
from gateway.cli.errors import CommandFailed, UsageError, print_error
from gateway.cli.group import require_models
from gateway.cli.machine.example import EXAMPLE
from gateway.cli.printable import clean
from gateway.cli.progress import progress

if TYPE_CHECKING:
    from gateway.cli.doctor.check import DoctorCheck
    from gateway.config.settings import Settings

SHELL = "builtin:shell"
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY"}
"""The variable of each vendor's key."""

CHANNEL_SECRETS: Mapping[str, tuple[str, ...]] = {
    "telegram": ("token",),
    "slack": ("bot_token", "app_token"),
    "discord": ("token",),
}
"""Channels that can be set up here, and the secrets that they need."""

_MARKS = {"ok": "✓", "warning": "!", "failed": "✗"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitAnswers:
    """What to write: `secrets` go to `.env`, by the name of their variable."""

    model: str = SHELL
    base_url: str | None = None
    channel: str | None = None
    channel_settings: Mapping[str, object] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def toml(self) -> str:
        """Return the settings file."""
        text = EXAMPLE.replace(f'model = "{SHELL}"    ', f"model = {_toml(self.model)}    ", 1)
        if self.base_url:
            line = next(line for line in text.splitlines() if line.startswith("# base_url"))
            text = text.replace(line, f"base_url = {_toml(self.base_url)}", 1)
        if self.channel is None:
            return text
        lines = [f"{name} = {_toml(value)}" for name, value in self.channel_settings.items()]
        return text + "\n".join(["", f"[channels.{self.channel}]", *lines, ""])

    def dotenv(self) -> str:
        """Return the lines of `.env`."""
        return "".join(f"{name}='{value}'\n" for name, value in self.secrets.items())


def init(
    *,
    directory: Annotated[Path, typer.Option(help="The directory of dovecote.toml and .env.")] = Path(),
    model: Annotated[str | None, typer.Option(help="The model, such as openai:NAME; asks nothing.")] = None,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server.")] = None,
    channel: Annotated[str | None, typer.Option(help="telegram, slack or discord; asks nothing.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of the channel; can be repeated.")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Call the model and the platform first.")
    ] = True,
) -> None:
    """Ask for a model, its key and a channel, test each, and write dovecote.toml and .env.

    Existing settings are never overwritten. With `--model` or `--channel` nothing is asked, and secrets
    are taken from the environment; without a terminal and these options, a commented example is written.
    """
    _refuse_existing(directory / "dovecote.toml")
    asks = model is None and channel is None and sys.stdin.isatty()
    if asks:
        answers = _ask()
    else:
        if channel is not None and channel not in CHANNEL_SECRETS:
            raise UsageError(f"--channel {channel} is unknown here: use {', '.join(CHANNEL_SECRETS)}")
        answers = InitAnswers(
            model=model or SHELL,
            base_url=base_url,
            channel=channel,
            channel_settings=parse_settings(setting or []),
        )
    _refuse_repeated(directory / ".env", answers)
    checks = _test(answers, calls=test)
    is_wrong = any(check.state == "failed" for check in checks)
    if is_wrong and not (asks and typer.confirm("A test failed. Write the files nevertheless?")):
        raise CommandFailed("a test failed, and nothing was written; --no-test writes without tests")
    _write(directory, answers)


def _ask() -> InitAnswers:
    from gateway.config.load import environment

    question = "Model (openai:NAME, anthropic:NAME, google:NAME, ollama:NAME)"
    model = _ask_until_valid(question, _check_model, default=SHELL)
    vendor = model.partition(":")[0]
    base_url = None
    if vendor == "openai":
        given = _ask_until_valid("Base URL (empty: OpenAI)", _check_base_url, default="", show_default=False)
        base_url = given or None
    secrets: dict[str, str] = {}
    if vendor in KEYS and not environment(KEYS[vendor]):
        secrets[KEYS[vendor]] = _secret(f"Key of {vendor} ({KEYS[vendor]})")
    question = f"Channel ({', '.join(CHANNEL_SECRETS)}; empty: none)"
    channel = _ask_until_valid(question, _check_channel, default="", show_default=False)
    for name in CHANNEL_SECRETS.get(channel, ()):
        variable = _variable(channel, name)
        if not environment(variable):
            secrets[variable] = _secret(f"{channel}: {name}")
    return InitAnswers(model=model, base_url=base_url, channel=channel or None, secrets=secrets)


def _ask_until_valid(question: str, check: Callable[[str], None], **options: Any) -> str:
    """Ask again while the answer is wrong, because an error would lose the answers before."""
    while True:
        text = str(typer.prompt(question, **options)).strip()
        try:
            check(text)
        except UsageError as error:
            print_error(str(error))
        else:
            return text


def _check_model(text: str) -> None:
    _check_setting("model", text)


def _check_base_url(text: str) -> None:
    if text:
        _check_setting("base_url", text)


def _check_setting(name: str, text: str) -> None:
    from pydantic import ValidationError

    from gateway.config.broken_rules import broken_rules
    from gateway.config.setting_types import AgentSettings

    try:
        AgentSettings.model_validate({name: text})
    except ValidationError as error:
        raise UsageError(f"{name} = {text!r}: {broken_rules(error.errors())}") from None


def _check_channel(text: str) -> None:
    if text and text not in CHANNEL_SECRETS:
        raise UsageError(f"{text} cannot be set up here: use {', '.join(CHANNEL_SECRETS)}, or add it later")


def _secret(question: str) -> str:
    return _ask_until_valid(question, _check_secret, hide_input=True)


def _check_secret(text: str) -> None:
    if not text.isprintable() or "'" in text or not text:
        raise UsageError("a secret has printable characters and no quote")


def _variable(channel: str, name: str) -> str:
    return f"DOVECOTE_CHANNELS__{channel.upper()}__{name.upper()}"


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise CommandFailed(f"{target} already exists and was not changed")


def _refuse_repeated(dotenv: Path, answers: InitAnswers) -> None:
    """Refuse to add a variable to a .env that has it."""
    if not answers.secrets or not dotenv.exists():
        return
    lines = dotenv.read_text(encoding="utf-8", errors="replace").splitlines()
    names = {line.partition("=")[0].removeprefix("export ").strip() for line in lines}
    if known := sorted(names & set(answers.secrets)):
        raise CommandFailed(f"{dotenv} already sets {', '.join(known)} and was not changed: remove it there")


def _test(answers: InitAnswers, *, calls: bool) -> Sequence[DoctorCheck]:
    """Load the settings as the gateway would, and call the model and the platform."""
    from gateway.cli.doctor.remote_checks import check_channels, check_model_answers
    from gateway.config.load import load

    with tempfile.TemporaryDirectory(prefix="dovecote-init-") as scratch:
        _write_private(Path(scratch) / "dovecote.toml", answers.toml())
        _write_private(Path(scratch) / ".env", answers.dotenv())
        settings: Settings = load(config=Path(scratch) / "dovecote.toml", directory=Path(scratch))
    require_models(settings)
    if not calls:
        return []
    with progress("testing"):
        checks = [*check_model_answers(settings), *check_channels(settings)]
    for line in _lines(checks):
        typer.echo(line)
    return checks


def _lines(checks: Iterable[DoctorCheck]) -> Iterable[str]:
    for check in checks:
        remedy = f" → {check.remedy}" if check.remedy else ""
        yield clean(" ".join(f"{_MARKS[check.state]} {check.subject}: {check.detail}{remedy}".split()))


def _write(directory: Path, answers: InitAnswers) -> None:
    target, dotenv = directory / "dovecote.toml", directory / ".env"
    try:
        if answers.secrets:
            _write_private(dotenv, answers.dotenv(), add=True)
            typer.echo(f"wrote {len(answers.secrets)} secrets to {dotenv}")
        _write_private(target, answers.toml())
    except FileExistsError:
        raise CommandFailed(f"{target} already exists and was not changed") from None
    except OSError as error:
        raise CommandFailed(f"{target} cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {target}; start with `dovecote serve`")


def _write_private(file: Path, text: str, *, add: bool = False) -> None:
    """Write a new file that others cannot read, or add to one."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if add else os.O_EXCL)
    with os.fdopen(os.open(file, flags, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)


def _toml(value: object) -> str:
    """Return a value as TOML, which writes texts, numbers and lists as JSON does."""
    return json.dumps(value, ensure_ascii=False)
