"""Fire schedules through kills of two replicas and count misses and repeats (`python -m bench.firings`).

Each schedule is due once, at a random moment of the run. Half of them start a turn, half are reminders. The
event log says how often each one fired; the simulated platform says what arrived in the chats.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.chaos.deployment import Deployment, open_deployment
from bench.chaos.tally import TOKEN, message_mark

FIRST_CHAT = 1000
LEAD_SECONDS = 30.0
SCHEDULES_A_SECOND = 8
"""How many schedules are stored a second at least: the last one must be stored before the first is due."""

CREATORS = 4

PATIENCE = 120.0
SCHEDULES = "/accounts/me/schedules"


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringPlan:
    """How many schedules fire, in how many chats, and how often a replica is killed meanwhile.

    `seconds_a_kill`: about how long a kill takes with its pause and the start after it on this machine.
    """

    firings: int = 2000
    kills: int = 40
    chats: int = 20
    replicas: int = 2
    seconds_a_kill: float = 5.0
    seed: int = 1

    @property
    def window(self) -> float:
        """Seconds over which the due times are spread."""
        return max(self.kills * self.seconds_a_kill, self.firings / 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringReport:
    """What was counted: firings in the event logs, and messages that people got."""

    plan: FiringPlan
    kills: int
    missed: int
    doubled: int
    turns_doubled: int
    messages_missing: int
    messages_repeated: int
    latest: float

    @property
    def is_kept(self) -> bool:
        """Whether each due time fired once and each result arrived."""
        return self.missed == self.doubled == self.turns_doubled == self.messages_missing == 0


def count_firings(
    expected: Sequence[str], events: Sequence[Mapping[str, Any]], texts: Mapping[int, Sequence[str]]
) -> dict[str, int]:
    """Count a run: `expected` are the schedules, `texts` the bot's messages of each chat."""
    fired = Counter(event["data"]["schedule"] for event in events if event["type"] == "schedule.fired")
    turns = Counter(
        event["turn"] for event in events if event["type"] == "schedule.fired" and event.get("turn")
    )
    ended = Counter(event["turn"] for event in events if event["type"] == "turn.completed")
    marks = Counter(
        mark.group() for chat, said in texts.items() for text in said if (mark := TOKEN.search(text))
    )
    return {
        "missed": sum(schedule not in fired for schedule in expected),
        "doubled": sum(count - 1 for count in fired.values()),
        "turns_doubled": sum(ended[turn] != 1 for turn in turns),
        "messages_missing": len(expected) - len(marks),
        "messages_repeated": sum(count - 1 for count in marks.values()),
    }


async def run(plan: FiringPlan, directory: Path) -> FiringReport:
    """Run a plan in an empty directory."""
    chance = random.Random(plan.seed)
    env = {"DOVECOTE_SCHEDULE_LIMIT": str(plan.firings + 10)}
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything runs
    async with open_deployment(directory, replicas=plan.replicas, env=env) as deployment:
        chats = await _open_chats(deployment, plan)
        begin = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS + plan.firings / SCHEDULES_A_SECOND)
        due = {
            number: begin + timedelta(seconds=chance.uniform(0, plan.window))
            for number in range(plan.firings)
        }
        expected = await _create_schedules(deployment, list(chats.items()), due)
        await asyncio.sleep(max((begin - datetime.now(UTC)).total_seconds(), 0))
        for _ in range(plan.kills):
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            await deployment.kill_gateway(chance.randrange(plan.replicas))
        await asyncio.sleep(max((max(due.values()) - datetime.now(UTC)).total_seconds(), 0))
        await _wait_for_messages(deployment, chats, plan)
        events = [event for one in chats.values() for event in await deployment.log_of(one)]
        texts = {chat: [post.text for post in deployment.platform.messages(chat)] for chat in chats}
        return FiringReport(
            plan=plan,
            kills=deployment.gateway_kills,
            latest=max((_delay(event) for event in events if event["type"] == "schedule.fired"), default=0.0),
            **count_firings(expected, events, texts),
        )


async def _open_chats(deployment: Deployment, plan: FiringPlan) -> dict[int, str]:
    """Say hello in each chat, and return its conversation."""
    chats = [FIRST_CHAT + place for place in range(plan.chats)]
    for chat in chats:
        await deployment.platform.say(chat, "!echo hello")
    await deployment.platform.wait_until(
        lambda: all(deployment.platform.messages(chat) for chat in chats), seconds=PATIENCE
    )
    return await deployment.conversations()


async def _create_schedules(
    deployment: Deployment, chats: Sequence[tuple[int, str]], due: Mapping[int, datetime]
) -> list[str]:
    """Create the schedules over HTTP, some at once, and return their ids."""
    numbers, made = iter(due), list[str]()
    async with deployment.replicas[0].http() as session, asyncio.TaskGroup() as group:

        async def create_some() -> None:
            for number in numbers:
                chat, conversation = chats[number % len(chats)]
                body = new_schedule(message_mark(chat, number), is_reminder=number // len(chats) % 2 > 0)
                body |= {"conversation": conversation, "at": due[number].isoformat()}
                async with session.post(SCHEDULES, json=body) as answer:
                    answer.raise_for_status()
                    made.append((await answer.json())["id"])

        for _ in range(CREATORS):
            group.create_task(create_some())
    return made


def new_schedule(mark: str, *, is_reminder: bool) -> dict[str, str]:
    """Return a schedule that sends a mark: a reminder itself, a turn by the built-in shell."""
    if is_reminder:
        return {"kind": "reminder", "text": mark, "missed": "all"}
    return {"kind": "turn", "text": f"!echo {mark}", "missed": "all"}


async def _wait_for_messages(deployment: Deployment, chats: Mapping[int, str], plan: FiringPlan) -> None:
    """Wait until each result has arrived; a timeout is silent, because the count shows it."""

    def arrived() -> int:
        texts = (post.text for chat in chats for post in deployment.platform.messages(chat))
        return len({mark.group() for text in texts if (mark := TOKEN.search(text))})

    with suppress(TimeoutError):
        await deployment.platform.wait_until(lambda: arrived() >= plan.firings, seconds=PATIENCE)
    for conversation in chats.values():
        await deployment.until_relayed(conversation, ended=1)


def _delay(event: Mapping[str, Any]) -> float:
    """Return the seconds between the due time and the firing."""
    fired, due = (datetime.fromisoformat(one) for one in (event["time"], event["data"]["due"]))
    return (fired - due).total_seconds()


def parse_plan(arguments: Sequence[str] | None = None) -> tuple[FiringPlan, Path | None]:
    """Read the command line: the plan, and the directory for the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firings", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--chats", type=int, default=20)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds-a-kill", type=float, default=5.0, help="how long a restart takes here")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the data here, to look into")
    given = vars(parser.parse_args(arguments))
    keep = given.pop("keep")
    return FiringPlan(**given), keep


def main() -> int:
    """Run the plan and print the counts; returns 0 if nothing was missed or doubled."""
    plan, keep = parse_plan()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        report = asyncio.run(run(plan, keep or Path(temporary)))
    print(
        f"{plan.firings} firings, {report.kills} kills, {plan.replicas} replicas, seed {plan.seed}: "
        f"missed {report.missed}, doubled {report.doubled}, turns not ended once {report.turns_doubled}, "
        f"messages missing {report.messages_missing}, messages repeated {report.messages_repeated}, "
        f"latest firing {report.latest:.1f} s after its time, {time.monotonic() - begun:.0f} s in all"
    )
    return 0 if report.is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
