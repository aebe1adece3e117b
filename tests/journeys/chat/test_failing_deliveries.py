"""A platform fails one kind of message, or one thread: everything else in the room is answered."""

from __future__ import annotations

from pathlib import Path

from channels.telegram.simulator import simulate
from channels.telegram.simulator.world import Post
from gateway_process import channel_env, gateway

FORUM = -1_000_000_004_711
MANY = 10_000


async def test_a_failing_file_or_topic_mutes_nothing_else(tmp_path: Path) -> None:
    """Uploads and one topic get 500s; texts, commands, a new conversation and other topics are answered."""
    async with simulate() as platform:
        await platform.group(FORUM, forum=True)
        failing, healthy = await platform.topic(FORUM), await platform.topic(FORUM)
        env = channel_env("telegram", platform.settings(allow=["*"]))

        async def wait_for(text: str) -> Post:
            def found() -> list[Post]:
                return [post for post in platform.messages(FORUM) if text in post.text]

            await platform.wait_until(lambda: bool(found()), seconds=60)
            return found()[0]

        async with gateway(tmp_path / "data", env=env) as process:
            await platform.fail(500, times=MANY, method="sendDocument")
            await platform.fail(500, times=MANY, method="sendMessage", thread=failing)
            await platform.say(
                FORUM, "@dovecote_bot !mkdir -p outbox; echo x > outbox/a.bin", user=7, thread=healthy
            )
            await platform.wait_until(
                lambda: any(name == "sendDocument" for name, _ in platform.calls), seconds=60
            )
            await platform.say(FORUM, "@dovecote_bot !echo muted", user=7, thread=failing)
            await platform.wait_until(
                lambda: any(
                    name == "sendMessage" and str(given.get("message_thread_id")) == str(failing)
                    for name, given in platform.calls
                ),
                seconds=60,
            )
            await platform.say(FORUM, "@dovecote_bot !echo pigeon", user=7, thread=healthy)
            assert (await wait_for("pigeon")).thread == healthy
            await platform.say(FORUM, "/status@dovecote_bot", user=7, thread=healthy)
            assert (await wait_for("This is conversation")).thread == healthy
            await platform.say(FORUM, "/new@dovecote_bot", user=7, thread=healthy)
            assert (await wait_for("A new conversation begins")).thread == healthy
            await platform.say(FORUM, "@dovecote_bot !echo dove", user=7, thread=healthy)
            assert (await wait_for("dove")).thread == healthy
            async with process.http() as session, session.get("/deliveries") as answer:
                unfinished = [
                    one["route"]["thread"]
                    for one in (await answer.json())["items"]
                    if one["state"] in {"retrying", "sending"}
                ]
            assert {str(failing), str(healthy)} <= set(unfinished), "the file and the topic still fail"
            await platform.well()
            assert (await wait_for("muted")).thread == failing
            before = len(platform.messages(FORUM))
            await platform.say(FORUM, "@dovecote_bot !seq 1 3000", user=7, thread=healthy)
            await platform.wait_until(
                lambda: any("answer.txt" in str(post.raw) for post in platform.messages(FORUM)), seconds=60
            )
            texts = [post.text for post in platform.messages(FORUM)[before:] if "document" not in post.raw]
            assert [text.endswith("as a file.") for text in texts] == [True], "one message and the file"
            contents = [content for _, content in platform.world.files.values()]
            assert any(content.rstrip(b"`\n").endswith(b"\n3000") for content in contents)
