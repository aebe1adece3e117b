"""Command groups: the options that locate the gateway, and how commands run and exit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from gateway.cli.errors import (
    CommandFailed,
    ExitCode,
    GatewayUnreachable,
    UsageError,
    first_error,
    print_error,
    report_failures,
)

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient
    from gateway.config.settings import InvalidSettings, Settings

Config = Annotated[Path | None, typer.Option(help="The settings file (default: ./dovecote.toml).")]
ClientConfig = Annotated[
    Path | None,
    typer.Option(help="A settings file (default: dovecote.toml in the user's configuration directory)."),
]
Data = Annotated[Path | None, typer.Option(help="The data directory of a gateway on this machine.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[str | None, typer.Option(help="The gateway's address (DOVECOTE_URL).")]
Key = Annotated[str | None, typer.Option(help="An API key (DOVECOTE_KEY).", show_default=False)]

ABOUT = "Connects chat platforms to AI agents that run in sandboxes."
"""The first line of `dovecote --help`."""

GATEWAY_OPTIONS = {"url": Url, "key": Key, "data": Data, "config": ClientConfig}
"""The options of every command that calls a running gateway."""


class _CommandGroup(TyperGroup):
    """A group of commands whose errors of arguments have no words of pydantic."""

    def invoke(self, ctx: Any) -> Any:
        """Parse and run a command of the group."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            said = error.message.removeprefix("Value error, ").partition(", unable to parse")[0]
            error.message = said.replace("Input should", "should")
            raise


def group(help_text: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=_CommandGroup,
        help=help_text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def load_settings(config: Path | None, **flags: Any) -> Settings:
    """Read the settings with these flags; raises InvalidSettings."""
    from gateway.config.load import load

    return load(flags, config=config)


def load_client_settings(config: Path | None, **flags: Any) -> Settings:
    """Read the settings of a command that sends a key: no file of the working directory; see `load`."""
    from gateway.config.load import load_for_client

    return load_for_client(flags, config=config)


def require_models(settings: Settings) -> None:
    """Exit when the models of the settings cannot be used as configured, with a line for each."""
    from gateway.records.rules.agent_models import configured_model_problems

    _exit_on_problems(configured_model_problems(settings))


def require_declared_models(settings: Settings) -> None:
    """Exit when the models of `[agents.NAME]` cannot be used as configured, with a line for each."""
    from gateway.records.rules.agent_models import declared_model_problems

    _exit_on_problems(declared_model_problems(settings))


def _exit_on_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(ExitCode.USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSettings:
    """The settings, if they are valid, and a line for each problem."""

    settings: Settings | None
    problems: tuple[str, ...] = ()


def check_settings(config: Path | None, *, with_models: bool = True, **flags: Any) -> CheckedSettings:
    """Read the settings with these flags, and check the models and the tables of records.

    All problems are found at once: what is invalid hides nothing of the rest.
    """
    from gateway.config.settings import InvalidSettings
    from gateway.records.rules.agent_models import configured_model_problems
    from gateway.schedules.declared import table_problems

    found: list[str] = []
    settings: Settings | None = None
    valid_part: Settings | None
    try:
        valid_part = settings = load_settings(config, **flags)
    except InvalidSettings as error:
        found += map(str, error.problems)
        valid_part = error.valid_part
        with_models = with_models and _leaves_models(error)
    if valid_part is not None:
        found += configured_model_problems(valid_part) if with_models else ()
        found += [f"{one.pointer}: {one.detail}" for one in table_problems(valid_part)]
    return CheckedSettings(settings=settings, problems=tuple(found))


def _leaves_models(error: InvalidSettings) -> bool:
    """Return whether no problem is one of the default agent, of a key, or of a name that may mean these."""
    from gateway.config.settings import Settings

    others = Settings.model_fields.keys() - {"agent", "vendors"}
    return all(problem.key.split(".")[0] in others for problem in error.problems)


def require_no_problems(checked: CheckedSettings) -> Settings:
    """Return the settings; exits when there is a problem, with a line for each."""
    _exit_on_problems(checked.problems)
    if checked.settings is None:
        raise typer.Exit(ExitCode.USAGE)
    return checked.settings


def local(
    app: typer.Typer, name: str, *, logs: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that needs no gateway.

    If it `logs`, warnings of the modules that it uses go to stderr, never into its output.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(*args: Any, **kwargs: Any) -> None:
            with report_failures():
                if logs:
                    _log_warnings()
                function(*args, **kwargs)

        app.command(name)(command)
        return function

    return register


def _log_warnings() -> None:
    from gateway.observability.log_setup import set_up_logging

    set_up_logging(level="warning")


RemoteCommand = Callable[..., Coroutine[Any, Any, None]]
Register = Callable[[RemoteCommand], Callable[..., Awaitable[None]]]


def remote(app: typer.Typer, name: str) -> Register:
    """Register a command `async def f(gateway, …)`, with the options that locate the gateway."""
    return _register(app, name, is_operator=False)


def operator(app: typer.Typer, name: str) -> Register:
    """Register a command that needs the operator's key: `--key`, else DOVECOTE_ADMIN_KEY."""
    return _register(app, name, is_operator=True)


def _register(app: typer.Typer, name: str, *, is_operator: bool) -> Register:
    def register(function: RemoteCommand) -> Callable[..., Awaitable[None]]:
        def command(
            *, url: str | None, key: str | None, data: Path | None, config: Path | None, **own: Any
        ) -> None:
            with report_failures():
                flags = {"url": url, "key": key, "data_dir": data}
                settings = load_client_settings(config, **flags)
                if is_operator and key is None and settings.admin_key is not None:
                    settings = settings.model_copy(update={"key": settings.admin_key})
                with explain_location(settings, config, flags), explain_operator_key(expected=is_operator):
                    asyncio.run(with_gateway(settings, lambda gateway: function(gateway, **own)))

        _describe(command, function)
        app.command(name)(command)
        return function

    return register


@contextmanager
def explain_operator_key(*, expected: bool) -> Iterator[None]:
    """After a refusal of a command of the operator, say which key it needs."""
    from gateway.cli.client import UNAUTHORIZED, ApiError

    try:
        yield
    except ApiError as error:
        if expected and error.status == UNAUTHORIZED:
            print_error("this needs the operator's key (`admin_key`): set DOVECOTE_ADMIN_KEY, or pass --key")
        raise


@contextmanager
def explain_location(settings: Settings, config: Path | None, flags: Mapping[str, Any]) -> Iterator[None]:
    """After a failure to reach the gateway, say whether one was named, and by which unread file."""
    from gateway.cli.client import UNAUTHORIZED, ApiError
    from gateway.cli.connection import locate_gateway

    try:
        yield
    except (GatewayUnreachable, ApiError, ExceptionGroup) as raised:
        error = first_error(raised)
        if isinstance(error, GatewayUnreachable):
            note_ignored_files(error, settings, config, flags)
            if type(error) is GatewayUnreachable and not locate_gateway(settings).is_named:
                error.args = (f"no gateway runs here: {error}",)
        elif isinstance(error, ApiError) and error.status == UNAUTHORIZED:
            note_ignored_files(error, settings, config, flags)
        raise


def note_ignored_files(
    error: CommandFailed, settings: Settings, config: Path | None, flags: Mapping[str, Any]
) -> None:
    """Name the files of the working directory that were not read, if they lead to another gateway."""
    from gateway.config.load import ignored_files

    ignored = ignored_files(config)
    if ignored and _lead_elsewhere(settings, flags, needs_url=isinstance(error, GatewayUnreachable)):
        error.add_note(
            f"{' and '.join(ignored)} in this directory did not choose the gateway: "
            "pass --config, --data or --url"
        )


def _lead_elsewhere(settings: Settings, flags: Mapping[str, Any], *, needs_url: bool) -> bool:
    """Return whether the files of the working directory name another gateway than the settings."""
    from gateway.cli.connection import locate_gateway
    from gateway.config.settings import InvalidSettings

    try:
        theirs, ours = locate_gateway(load_settings(None, **flags)), locate_gateway(settings)
    except (InvalidSettings, UsageError):
        return True
    return theirs.is_named and theirs.url != ours.url if needs_url else theirs != ours


async def with_gateway(settings: Settings, work: Callable[[GatewayClient], Awaitable[None]]) -> None:
    """Run a function with a client of the gateway that the settings locate."""
    from gateway.cli.client import open_gateway
    from gateway.cli.connection import locate_gateway

    reach = locate_gateway(settings)
    async with open_gateway(reach.url, reach.key) as gateway:
        await work(gateway)


def _describe(command: Callable[..., None], function: Callable[..., Any]) -> None:
    """Copy name, help and options of `function` to `command`, and add those that locate the gateway."""
    own = list(inspect.signature(function).parameters.values())[1:]
    hints = get_type_hints(function, include_extras=True, localns={"GatewayClient": object})
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in GATEWAY_OPTIONS.items()
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*parameters, *shared]}
