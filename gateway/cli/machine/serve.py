"""`dovecote serve`: run the gateway."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer
from typer.main import get_command

from gateway.cli.errors import print_error
from gateway.cli.group import (
    ABOUT,
    Config,
    Data,
    check_settings,
    group,
    local,
    require_no_problems,
)
from gateway.cli.standard_streams import do_without_stdout

if TYPE_CHECKING:
    from gateway.config.settings import Settings


def _import_log() -> None:
    """Import structlog without rich, for tracebacks that the log does not use: it takes 7 MB."""
    absent = [name for name in ("rich", "pygments") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        import structlog.dev  # noqa: F401
    finally:
        for name in absent:
            del sys.modules[name]


def _import_gateway() -> Callable[[Settings], int]:
    from gateway.app import run

    return run


@contextmanager
def _collection_deferred() -> Iterator[None]:
    """Collect no garbage in the block, and exclude what it creates: modules live as long as the process."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _log_start(settings: Settings) -> None:
    """Log that the gateway starts, before the imports and connections that take seconds."""
    import structlog

    from gateway.observability.log_setup import set_up_logging

    set_up_logging(settings.log_format, settings.log_level, secrets=settings.secrets())
    log = structlog.get_logger("gateway")
    log.info("gateway.starting", version=version("dovecote"), data=str(settings.data_dir))


def serve(
    *,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 selects a free one.")] = None,
    roles: Annotated[str | None, typer.Option(help="all, or some of ingress,turns,delivery,reaper.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    config: Config = None,
    allow_unsandboxed_host: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed-host", help="Run commands as plain processes where namespaces are forbidden."
        ),
    ] = False,
    allow_shared_host: Annotated[
        bool, typer.Option("--allow-shared-host", help="Let several accounts run commands on this machine.")
    ] = False,
) -> None:
    """Run the gateway until it is stopped."""
    do_without_stdout()
    with _collection_deferred():
        _import_log()
        checked = check_settings(
            config,
            data_dir=data,
            host=host,
            port=port,
            roles=roles,
            log_format=log_format,
            allow_unsandboxed_host=allow_unsandboxed_host or None,
            allow_shared_host=allow_shared_host or None,
        )
        settings = require_no_problems(checked)
        _log_start(settings)
        run = _import_gateway()
    for warning in settings.warnings():
        print_error(f"warning: {warning}")
    raise typer.Exit(run(settings))


@cache
def command() -> Callable[..., object]:
    """Return a command line that has this command alone, built once in a process."""
    app: typer.Typer = group(ABOUT)
    app.callback()(_be_a_group)
    local(app, "serve", logs=False)(serve)
    return get_command(app)


def _be_a_group() -> None:
    """Do nothing: with a callback the command keeps its name, although it has no other beside it."""
