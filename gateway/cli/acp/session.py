"""One session of an editor: a conversation of the gateway. A prompt is a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from delivery.events.event import REQUEST_ENDS, Event, EventType
from gateway.cli.acp.peer import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, JsonRpcPeer, RpcError
from gateway.cli.acp.prompts import Prompt, PromptFile
from gateway.cli.acp.updates import (
    Update,
    UpdateEncoder,
    commands_update,
    decision_of,
    permission_of,
    text_update,
    to_event,
)
from gateway.cli.client import ApiError, GatewayClient
from gateway.cli.errors import CommandFailed, print_error
from gateway.cli.terminal.conversation_client import ConversationClient, Frame
from gateway.web.stream.turn_events import TurnEnded, TurnEventReader

END_TURN, CANCELLED = "end_turn", "cancelled"
PAGE = 500
"""Events of one request for the history."""


@dataclass(slots=True, kw_only=True)
class RunningPrompt:
    """A prompt until its turn ends; `sent` is its message until that is accepted."""

    done: asyncio.Future[str]
    sent: str | None = None
    reader: TurnEventReader | None = None
    cancelled: bool = False
    early: list[Event] = field(default_factory=list)

    def end(self, reason: str | RpcError) -> None:
        """End the prompt with a stop reason or an error."""
        if self.done.done():
            return
        if isinstance(reason, RpcError):
            self.done.set_exception(reason)
        else:
            self.done.set_result(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that the next prompt answers, and the turn that asks it."""

    approval: str
    reader: TurnEventReader


class AcpSession:
    """Follows a conversation, sends its events as updates, and asks the editor for decisions."""

    def __init__(self, identity: str, gateway: GatewayClient, peer: JsonRpcPeer, agent: str | None) -> None:
        self._id = identity
        self._gateway = gateway
        self._peer = peer
        self._agent = agent
        self._client = ConversationClient(gateway, identity, may_be_new=True)
        self._encoder = UpdateEncoder()
        self._readers: dict[str, TurnEventReader] = {}
        self._prompt: RunningPrompt | None = None
        self._question: OpenQuestion | None = None
        self._following: asyncio.Task[None] | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}

    async def load(self) -> None:
        """Send the stored conversation as updates, and ask for its waiting approvals; raises ApiError."""
        after: int | None = 0
        last = 0
        while after is not None:
            page = await self._gateway.get("conversations", self._id, "events", after=after, limit=PAGE)
            for frame in page["items"]:
                event = to_event(frame)
                if event is not None and event.type is not EventType.MESSAGE_DELTA:
                    await self._show(event, int(frame["seq"]))
                last = int(frame["seq"])
            after = page["next"]
        self._client = ConversationClient(self._gateway, self._id, after=last)
        await self._ask_waiting()

    async def resume(self) -> None:
        """Follow the conversation from now on, and ask for its waiting approvals; raises ApiError."""
        await self._ask_waiting()
        self._start_following()

    async def offer_commands(self) -> None:
        """Send the commands for the editor's menu."""
        await self._send(commands_update())

    async def close(self) -> None:
        """Cancel the prompt's turn, and follow the conversation no longer."""
        await self.cancel()
        self.leave(CANCELLED)

    def leave(self, reason: str | RpcError) -> None:
        """End the prompt, whose turn goes on, and follow the conversation no longer."""
        if self._prompt is not None:
            self._prompt.end(reason)
        if self._following is not None:
            self._following.cancel()

    async def _ask_waiting(self) -> None:
        conversation = (await self._gateway.get("conversations", self._id))["id"]
        waiting = await self._gateway.list_all("approvals", state="pending", conversation=conversation)
        for one in waiting:
            self._start_asking({**one, "approval": one["id"]})

    async def prompt(self, given: Prompt) -> str:
        """Send a message, or the answer to a question, and return how its turn stopped; raises RpcError."""
        if self._prompt is not None:
            raise RpcError(INVALID_REQUEST, "a prompt of this session is running: cancel it first")
        self._start_following()
        prompt = self._prompt = RunningPrompt(done=asyncio.get_running_loop().create_future())
        try:
            if self._question is not None and given.files:
                raise RpcError(INVALID_PARAMS, "the answer to a question has no files")
            if self._question is None:
                links = [await self._store(file) for file in given.files]
                prompt.sent = await self._client.send_message(
                    given.text, agent=self._agent, attachments=links
                )
            else:
                await self._answer(prompt, self._question, given.text)
            return await prompt.done
        finally:
            self._prompt = None

    async def _store(self, file: PromptFile) -> Mapping[str, str]:
        """Upload a file and return its attachment; raises RpcError."""
        try:
            stored = await self._gateway.store_file(file.name, file.content)
        except ApiError as error:
            raise RpcError(INVALID_PARAMS, f"{file.name}: {error}") from error
        return {"name": file.name, "url": str(stored["url"])}

    async def _answer(self, prompt: RunningPrompt, question: OpenQuestion, text: str) -> None:
        prompt.reader = question.reader
        try:
            await self._gateway.post("approvals", question.approval, body={"answer": text})
        except ApiError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from error
        self._question = None

    async def cancel(self) -> None:
        """Cancel the prompt's turn, now or once it is accepted."""
        prompt = self._prompt
        if prompt is None:
            return
        prompt.cancelled = True
        if prompt.reader is not None:
            await self._gateway.post("turns", prompt.reader.turn, "cancel")

    def _start_following(self) -> None:
        if self._following is None or self._following.done():
            self._following = self._peer.start(self._follow())

    async def _follow(self) -> None:
        """Follow the conversation; a failure ends the prompt, and the next one connects again."""
        try:
            async with aclosing(self._client.frames()) as frames:
                async for frame in frames:
                    await self._on_frame(frame)
        except CommandFailed as error:
            print_error(str(error))
            if self._prompt is not None:
                self._prompt.end(RpcError(INTERNAL_ERROR, str(error)))

    async def _on_frame(self, frame: Frame) -> None:
        kind = str(frame.get("type"))
        if kind == "accepted":
            await self._on_accepted(frame)
        elif kind == "error":
            self._on_error(frame)
        elif "seq" in frame and "." in kind:
            event = to_event(frame)
            if event is not None:
                await self._on_event(event, int(frame["seq"]))

    async def _on_accepted(self, frame: Frame) -> None:
        prompt = self._prompt
        if prompt is None or frame.get("id") != prompt.sent:
            return
        prompt.sent = None
        if frame.get("turn") is None:  # a command was executed
            await self._send(text_update(str(frame.get("reply") or "")))
            prompt.end(END_TURN)
        else:
            prompt.reader = TurnEventReader(turn=str(frame["turn"]))
        early, prompt.early = prompt.early, []
        for event in early:
            await self._on_event(event, 0)
        if prompt.cancelled and prompt.reader is not None:
            await self._gateway.post("turns", prompt.reader.turn, "cancel")

    def _on_error(self, frame: Frame) -> None:
        detail = str(frame.get("detail") or frame.get("code"))
        if self._prompt is not None and frame.get("id") == self._prompt.sent:
            self._prompt.end(RpcError(INTERNAL_ERROR, detail))
        else:
            print_error(detail)

    async def _on_event(self, event: Event, seq: int) -> None:
        """Show an event; events before the prompt's turn is known wait, because they may be its own."""
        prompt = self._prompt
        if prompt is not None and prompt.sent is not None:
            prompt.early.append(event)
            return
        await self._show(event, seq)
        if event.type is EventType.APPROVAL_REQUESTED:
            self._start_asking(event.data)
        elif event.type is EventType.QUESTION_REQUESTED:
            await self._on_question(event)
        elif event.type in REQUEST_ENDS and (asking := self._asked.pop(str(event.data["approval"]), None)):
            asking.cancel()

    async def _show(self, event: Event, seq: int) -> None:
        prompt = self._prompt
        own = prompt.reader if prompt is not None else None
        is_own = own is not None and event.turn == own.turn
        if event.type is EventType.MESSAGE_RECEIVED and not is_own:
            await self._send(text_update(str(event.data.get("text", "")), kind="user_message_chunk"))
        if event.turn is None:
            return
        reader = own if own is not None and is_own else self._reader(event.turn)
        for item in reader.read(event, seq):
            for update in self._encoder.encode(item, event):
                await self._send(update)
            if isinstance(item, TurnEnded):
                self._readers.pop(event.turn, None)
                if is_own and prompt is not None:
                    prompt.end(_stop_reason(event))

    def _reader(self, turn: str) -> TurnEventReader:
        return self._readers.setdefault(turn, TurnEventReader(turn=turn))

    async def _on_question(self, event: Event) -> None:
        """Ask for a choice; a question for a text is shown, and the next prompt answers it."""
        if event.data.get("choices"):
            self._start_asking(event.data)
            return
        prompt = self._prompt
        if prompt is None or prompt.reader is None or event.turn != prompt.reader.turn:
            return
        fields = [f"- {name}: {meaning}" for name, meaning in (event.data.get("form") or {}).items()]
        hint = ["Answer with every field, as in `name: value; name: value`."] if fields else []
        await self._send(text_update("\n".join([str(event.data["question"]), *fields, *hint])))
        self._question = OpenQuestion(approval=str(event.data["approval"]), reader=prompt.reader)
        prompt.end(END_TURN)

    def _start_asking(self, about: Mapping[str, Any]) -> None:
        """Ask the editor for a decision until it is made, there or elsewhere."""
        self._asked[str(about["approval"])] = self._peer.start(self._ask(about))

    async def _ask(self, about: Mapping[str, Any]) -> None:
        try:
            params = {"sessionId": self._id, **permission_of(about)}
            answer = await self._peer.request("session/request_permission", params)
            self._asked.pop(str(about["approval"]), None)
            outcome = answer.get("outcome") if isinstance(answer, Mapping) else None
            body = decision_of(about, outcome)
            if body is not None:
                await self._gateway.post("approvals", str(about["approval"]), body=body)
        except (CommandFailed, RpcError) as error:
            print_error(f"{about['approval']} was not decided here: {error}")

    async def _send(self, update: Update) -> None:
        await self._peer.notify("session/update", {"sessionId": self._id, "update": update})


def _stop_reason(event: Event) -> str | RpcError:
    if event.type is EventType.TURN_FAILED:
        return RpcError(INTERNAL_ERROR, str(event.data.get("error") or "the turn failed"))
    return CANCELLED if event.type is EventType.TURN_CANCELLED else END_TURN
