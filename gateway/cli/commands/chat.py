"""`dovecote chat`, `dovecote tail` and `dovecote acp`: a conversation in the terminal or an editor."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import CommandFailed, ExitCode, UsageError, print_error
from gateway.cli.group import Json
from gateway.cli.output import is_dumb_terminal, print_line, shows_styles, to_json
from gateway.cli.stdout_reader import while_stdout_is_read
from gateway.cli.terminal.transcript import render_summary

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient
    from gateway.cli.terminal.screens import ChatScreen


async def chat(
    gateway: GatewayClient,
    message: Annotated[
        str | None, typer.Argument(help="Send this message, print the answer, and exit.")
    ] = None,
    *,
    conversation: Annotated[str, typer.Option(help="A name of your own, or a cnv_ id.")] = "terminal",
    agent: Annotated[str | None, typer.Option(help="The agent to talk to.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print Markdown as it is written.")] = False,
) -> None:
    """Talk to a running gateway: with MESSAGE one turn, without it until Ctrl-D."""
    from gateway.cli.terminal.conversation_client import ConversationClient
    from gateway.cli.terminal.session import REFUSED, TerminalSession

    if message is not None and not message.strip():
        raise UsageError("the message is blank: give some text")
    ended = await TerminalSession(
        ConversationClient(gateway, conversation, may_be_new=True),
        _screen(in_session=message is None),
        agent=agent,
        once=message,
        markdown=not plain and shows_styles(),
    ).run()
    if (message is not None and ended != "turn.completed") or ended == REFUSED:
        raise typer.Exit(ExitCode.FAILED)


def _screen(*, in_session: bool) -> ChatScreen:
    """Return a screen with an editor for a session at a terminal that can move its cursor."""
    from gateway.cli.terminal.screens import LineScreen

    at_terminal = in_session and sys.stdin.isatty()
    if not at_terminal or not sys.stdout.isatty() or is_dumb_terminal():
        return LineScreen(prompts=at_terminal)
    from gateway.cli.terminal.line_editor import LineEditor

    return LineEditor()


async def acp(
    gateway: GatewayClient,
    *,
    agent: Annotated[str | None, typer.Option(help="The agent to talk to.")] = None,
) -> None:
    """Serve an editor over the Agent Client Protocol, on standard input and output."""
    from gateway.cli.acp.agent import AcpAgent
    from gateway.cli.acp.peer import JsonRpcPeer

    peer = JsonRpcPeer()
    await peer.serve(AcpAgent(gateway, peer, agent).handle)


async def tail(
    gateway: GatewayClient,
    conversation: Annotated[str, typer.Argument(help="A name of your own, or a cnv_ id.")],
    *,
    after: Annotated[
        int | None, typer.Option(help="Begin after this seq; 0 begins at the first stored event.", min=0)
    ] = None,
    follow: Annotated[bool, typer.Option(help="Keep running and print new events.")] = True,
    as_json: Json = False,
) -> None:
    """Print a conversation's events, one per line."""
    from gateway.cli.terminal.conversation_client import ConversationClient
    from gateway.cli.terminal.session import on_interrupt

    await _require_conversation(gateway, conversation)
    talk = ConversationClient(gateway, conversation, after=after)
    stop = asyncio.Event()
    with on_interrupt(stop.set):
        async with while_stdout_is_read(), asyncio.TaskGroup() as group:
            printing = group.create_task(_print_frames(talk.frames(), follow=follow, as_json=as_json))
            printing.add_done_callback(lambda _task: stop.set())
            await stop.wait()
            printing.cancel()


async def _require_conversation(gateway: GatewayClient, conversation: str) -> None:
    """Raise CommandFailed if there is no such conversation: to subscribe to a new name would create it."""
    from gateway.cli.client import ApiError

    try:
        await gateway.get("conversations", conversation)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise CommandFailed(
            f"there is no such conversation: {conversation}; `dovecote conversations list` shows them"
        ) from error


async def _print_frames(frames: AsyncGenerator[Mapping[str, Any]], *, follow: bool, as_json: bool) -> None:
    async with aclosing(frames) as open_frames:
        async for frame in open_frames:
            kind = str(frame.get("type"))
            if kind == "caught_up" and not follow:
                return
            if kind == "gap":
                print_error(f"events {frame.get('from')} to {frame.get('to')} are no longer stored")
            elif kind == "reset":
                print_error("the conversation's event stream was recreated; its seq numbers begin again")
            elif "seq" in frame and "." in kind:
                print_line(to_json(frame) if as_json else render_summary(frame))
