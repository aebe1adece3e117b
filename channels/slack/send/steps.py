"""Show the tool calls of a turn in a message of their own: a stream of Slack's plan and task chunks.

Slack ends a stream by itself after some minutes. Then the message gets a plain list in place of its tasks.
"""

from __future__ import annotations

from slack_sdk.models.messages.chunk import Chunk, PlanUpdateChunk, TaskUpdateChunk

from channels.errors import NotPermitted, Rejected, Undeliverable
from channels.inbox.text import clean
from channels.message import Address, SentMessage, StepState, ToolStep, ToolSteps
from channels.slack.api import Api, answer_of
from channels.slack.errors import error_code
from channels.slack.send import rendering
from channels.slack.send.streaming import STREAM_ENDED_CODES, STREAM_PREFIX, StreamingReplies

TITLE_LIMIT = 200
MAX_TASKS = 40
"""Tasks of one message; Slack accepts at most 50 blocks."""

RUNNING_TITLE, ENDED_TITLE = "Working", "Steps"
_STATUSES = {StepState.RUNNING: "in_progress", StepState.DONE: "complete", StepState.FAILED: "error"}
_MARKS = {StepState.RUNNING: "…", StepState.DONE: "✓", StepState.FAILED: "✗"}


class StepPlans:
    """Shows steps where Slack accepts streams."""

    def __init__(self, api: Api, streams: StreamingReplies) -> None:
        self._api = api
        self._streams = streams

    async def show(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Begin, continue or end the message of a turn's steps; None where Slack shows none."""
        platform_id = steps.platform_id or await self._begin(address, steps)
        if platform_id is None:
            return None
        ts = platform_id.removeprefix(STREAM_PREFIX)
        try:
            if steps.has_ended:
                await self._end(address, ts, steps)
            elif steps.platform_id is not None:
                append = self._api.web.chat_appendStream
                await answer_of(append(channel=address.room, ts=ts, chunks=_chunks(steps)))
        except (Rejected, NotPermitted, Undeliverable) as error:
            if error_code(error) not in STREAM_ENDED_CODES:
                raise
            await self._replace(address, ts, steps)
            return None
        return SentMessage(platform_id=platform_id)

    async def _begin(self, address: Address, steps: ToolSteps) -> str | None:
        if not self._streams.may_stream(address, steps.recipient_id):
            return None
        ts = await self._streams.start(
            address, steps.recipient_id, chunks=_chunks(steps), task_display_mode="plan"
        )
        return None if ts is None else STREAM_PREFIX + ts

    async def _end(self, address: Address, ts: str, steps: ToolSteps) -> None:
        metadata = rendering.delivery_metadata(steps.key)
        stop = self._api.web.chat_stopStream
        await answer_of(stop(channel=address.room, ts=ts, chunks=_chunks(steps), **metadata))

    async def _replace(self, address: Address, ts: str, steps: ToolSteps) -> None:
        if not steps.steps:  # those of a killed process are not known: what the message shows stays
            return
        lines = [f"{_MARKS[step.state]} {_title(step)}" for step in steps.steps[-MAX_TASKS:]]
        content = {"text": rendering.escape("\n".join(lines))[: rendering.TEXT_LIMIT], "blocks": []}
        place = {"channel": address.room, "ts": ts}
        await self._api.call("chat.update", {**place, **content, **rendering.delivery_metadata(steps.key)})


def _chunks(steps: ToolSteps) -> list[Chunk]:
    plan = PlanUpdateChunk(title=ENDED_TITLE if steps.has_ended else RUNNING_TITLE)
    tasks = [
        TaskUpdateChunk(id=step.id, title=_title(step), status=_STATUSES[step.state])
        for step in steps.steps[:MAX_TASKS]
    ]
    return [plan, *tasks]


def _title(step: ToolStep) -> str:
    return clean(step.title)[:TITLE_LIMIT] or "…"
