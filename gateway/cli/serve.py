"""`dovecote serve`: the gateway itself."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.commands import Config, Data, require_models, settings_of
from gateway.cli.failure import complain


def serve(
    *,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 takes a free one.")] = None,
    roles: Annotated[str | None, typer.Option(help="all, or some of ingress,turns,delivery,reaper.")] = None,
    config: Config = None,
    allow_unsandboxed_host: Annotated[
        bool, typer.Option("--allow-unsandboxed-host", help="Plain processes where namespaces are forbidden.")
    ] = False,
    allow_shared_host: Annotated[
        bool, typer.Option("--allow-shared-host", help="Let several accounts run commands on this machine.")
    ] = False,
) -> None:
    """Run the gateway until it is told to stop."""
    settings = settings_of(
        config,
        data_dir=data,
        host=host,
        port=port,
        roles=roles,
        allow_unsandboxed_host=allow_unsandboxed_host or None,
        allow_shared_host=allow_shared_host or None,
    )
    require_models(settings)
    from gateway.app import run
    from gateway.telemetry import set_up_logging

    set_up_logging(settings.log_format, settings.log_level, secrets=settings.secrets())
    for warning in settings.warnings():
        complain(f"warning: {warning}")
    raise typer.Exit(run(settings))
