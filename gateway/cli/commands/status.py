"""`dovecote status`: whether a gateway is ready, what it works on, and what waits for a person."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import ExitCode, GatewayUnreachable, UsageError
from gateway.cli.group import Json
from gateway.cli.output import print_json, styled_state
from gateway.cli.printable import clean

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

PAGE = 200
WATCH_SECONDS = 2.0
MAX_REASONS = 3
"""Reasons of deliveries that are shown; `dovecote deliveries list` has all."""

FIGURES: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "turns": {
        "running": ("turns", {"state": "running"}),
        "queued": ("turns", {"state": "queued"}),
        "dead": ("turns", {"dead": "true"}),
    },
    "jobs": {"running": ("jobs", {"state": "running"})},
    "approvals": {"waiting": ("approvals", {"state": "pending"})},
    "deliveries": {
        "retrying": ("deliveries", {"state": "retrying"}),
        "parked": ("deliveries", {"state": "parked"}),
        "dead": ("deliveries", {"state": "dead"}),
    },
}
"""What is counted: the list and its filter, by line and word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """A gateway at one moment; `reasons` says why its deliveries wait or were given up."""

    url: str
    ready: Mapping[str, Any]
    counts: Mapping[str, Mapping[str, str]]
    channels: tuple[Mapping[str, Any], ...]
    reasons: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Return whether the gateway does its work."""
        return self.ready.get("status") == "ready"


Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")]


async def show_status(gateway: GatewayClient, *, watch: Watch = False, as_json: Json = False) -> None:
    """Show whether the gateway is ready, what it works on, what waits and why, and whether channels receive.

    The exit code is 1 if it is not ready.
    """
    if watch:
        await _watch(gateway, as_json=as_json)
        return
    found = await read_status(gateway)
    if as_json:
        counts = {line: dict(figures) for line, figures in found.counts.items()}
        about = {"counts": counts, "reasons": found.reasons, "channels": found.channels}
        print_json({"url": found.url, "ready": found.ready, **about})
    else:
        typer.echo("\n".join(status_lines(found)))
    if not found.is_ready:
        raise typer.Exit(ExitCode.FAILED)


async def read_status(gateway: GatewayClient) -> GatewayStatus:
    """Ask the gateway."""
    places = [(line, word) for line, figures in FIGURES.items() for word in figures]
    ready, channels, *pages = await asyncio.gather(
        gateway.readiness(),
        _channels(gateway),
        *(
            gateway.get(path, limit=PAGE, **query)
            for path, query in (FIGURES[line][word] for line, word in places)
        ),
    )
    counts: dict[str, dict[str, str]] = {line: {} for line in FIGURES}
    reasons: dict[str, None] = {}
    for (line, word), page in zip(places, pages, strict=True):
        counts[line][word] = f"{len(page['items'])}{'+' if page.get('next') else ''}"
        if line == "deliveries":
            reasons |= dict.fromkeys(str(one["error"]) for one in page["items"] if one.get("error"))
    return GatewayStatus(
        url=gateway.url, ready=ready, counts=counts, channels=tuple(channels), reasons=tuple(reasons)
    )


async def _channels(gateway: GatewayClient) -> list[dict[str, Any]]:
    records = await gateway.list_all("accounts", "me", "channels")
    states = [await gateway.get("accounts", "me", "channels", one["id"], "status") for one in records]
    return [{"name": one["name"], **state} for one, state in zip(records, states, strict=True)]


def status_lines(found: GatewayStatus) -> list[str]:
    """Return the lines for people, at most 80 columns unless a reason is longer."""
    problems = {**found.ready.get("checks", {}), **found.ready.get("degraded", {})}
    lines = [_line("gateway", f"{styled_state('ready' if found.is_ready else 'not ready')}  {found.url}")]
    lines += [_line("", f"{name}: {state}") for name, state in problems.items() if state != "ok"]
    for line, figures in found.counts.items():
        shown = [f"{count} {word}" for word, count in figures.items() if count != "0"]
        lines.append(_line(line, " · ".join(shown) or "none"))
    lines += [_line("", clean(reason)) for reason in found.reasons[:MAX_REASONS]]
    lines += [
        _line("channels" if not place else "", f"{styled_state(one['state'])}  {clean(_channel(one))}")
        for place, one in enumerate(found.channels)
    ]
    return lines if found.channels else [*lines, _line("channels", "none")]


def _line(name: str, text: str) -> str:
    return f"{name:<11}{text}"


def _channel(one: Mapping[str, Any]) -> str:
    return f"{one['name']}: {one['reason']}" if one.get("reason") else str(one["name"])


async def _watch(gateway: GatewayClient, *, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        raise UsageError("--watch needs a terminal, and cannot be used with --json")
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                lines = status_lines(await read_status(gateway))
            except GatewayUnreachable as error:
                lines = [str(error)]
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)
            await asyncio.sleep(WATCH_SECONDS)
