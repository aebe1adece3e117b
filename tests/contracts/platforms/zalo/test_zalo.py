"""What the Zalo adapter does beyond the contract: the Official Account, its window, its tokens, pictures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from channels.errors import (
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.message import Address, Message
from channels.port import WebhookRequest
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from channels.testing.sending import make_reply
from channels.zalo import plugin
from channels.zalo.simulator import Simulator, simulate
from channels.zalo.simulator.simulator import APP, OA_SECRET, PERSON, ROOM, WINDOW_SECONDS, oa_headers
from egress.guard import TRUSTED

ADA = Address(channel=CHANNEL, room=PERSON)


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run a simulated Zalo."""
    async with simulate() as simulator:
        yield simulator


def account(platform: Simulator, **others: Any) -> dict[str, Any]:
    """Return settings of the Official Account with its access token."""
    return platform.settings(platform="oa", **{"access_token": platform.access, **others})


def post(body: bytes, **how: str) -> WebhookRequest:
    """Return a signed event of the Official Account."""
    return WebhookRequest(headers=oa_headers(body, **how), body=body)


@pytest.mark.parametrize("scheme", ["sha256", "hmac"])
async def test_an_official_account_is_answered(platform: Simulator, scheme: str) -> None:
    """Its posts are verified by the scheme of the settings; the answer goes to the person."""
    recorder, body = UpdateRecorder(), platform.oa_event("Are you open?")
    async with open_connection(plugin, account(platform, signature=scheme)) as app:
        other = "hmac" if scheme == "sha256" else "sha256"
        for request in (post(body, scheme=other), post(body, scheme=scheme, secret="another-secret")):
            assert (await app.receiver.receive(request, recorder.accept)).status == 401
        assert (await app.receiver.receive(post(body, scheme=scheme), recorder.accept)).status == 200
        (update,) = recorder.updates
        assert isinstance(update, Message)
        assert (update.text, update.author.id, update.address) == ("Are you open?", PERSON, ADA)
        await app.sender.send(update.address, make_reply("**Yes**, until `8`."))
        await app.sender.typing(update.address)
    assert [(one.room, one.text) for one in platform.messages()] == [(PERSON, "Yes, until 8.")]


async def test_what_people_write_to_another_account_of_the_app_is_not_answered(platform: Simulator) -> None:
    """An app that is linked to several Official Accounts has one webhook for all of them."""
    recorder, event = UpdateRecorder(), json.loads(platform.oa_event("Are you open?"))
    async with open_connection(plugin, account(platform)) as app:
        for recipient in ("oa-2", "oa-1"):
            body = json.dumps({**event, "recipient": {"id": recipient}}).encode()
            assert (await app.receiver.receive(post(body), recorder.accept)).status == 200
            assert len(recorder.updates) == (recipient == "oa-1")


async def test_after_48_hours_the_refusal_says_so(platform: Simulator) -> None:
    """The chat is closed until the person writes, and what it missed is sent then."""
    platform.last_written[PERSON] -= WINDOW_SECONDS + 60
    async with open_connection(plugin, account(platform)) as app:
        with pytest.raises(Undeliverable, match=r"48 hours.*must write again"):
            await app.sender.send(ADA, make_reply("late"))
        await platform.write_to_oa("still there?")
        await app.sender.send(ADA, make_reply("yes"))
        with pytest.raises(Undeliverable, match="not followed"):
            await app.sender.send(Address(channel=CHANNEL, room="bob"), make_reply("hello"))
    assert [one.text for one in platform.messages()] == ["yes"]


async def test_a_token_that_ended_is_renewed_and_the_next_refresh_token_kept(platform: Simulator) -> None:
    """Refresh tokens work once: the newest one is stored, encrypted, and found after a restart."""
    state = MemoryChannelState()
    first = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with open_connection(plugin, first, state) as app:
        platform.access = "ended"
        await app.sender.send(ADA, make_reply("one"))
    async with open_connection(plugin, first, state) as app:
        await app.sender.send(ADA, make_reply("two"))
    assert [one.text for one in platform.messages()] == ["one", "two"]
    assert platform.refresh not in "".join(state.values.values())
    assert all(len(value) <= 1000 for value in state.values.values())
    with pytest.raises(Unauthorized, match="authorize the Official Account again"):
        async with open_connection(plugin, first, MemoryChannelState()):
            pass


async def test_two_replicas_renew_a_token_at_once(platform: Simulator) -> None:
    """The one whose refresh token was used before takes the next one, which is stored a moment later."""
    state = MemoryChannelState()
    settings = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with (
        open_connection(plugin, settings, state) as one,
        open_connection(plugin, settings, state) as two,
    ):
        platform.access = "ended"
        platform.answer_late("renew", 0.2)
        await asyncio.gather(*(app.sender.send(ADA, make_reply("hello")) for app in (one, two)))
    assert [post.text for post in platform.messages()] == ["hello", "hello"]


class _FailingState(MemoryChannelState):
    """A state whose database does not answer while `is_down`."""

    is_down = False

    async def set(self, values: Mapping[str, str]) -> None:
        """Store values, or fail."""
        if self.is_down:
            raise ConnectionError("the database does not answer")
        await super().set(values)


async def test_a_refresh_token_that_cannot_be_stored_is_kept_until_it_can(platform: Simulator) -> None:
    """Zalo accepts no earlier one: losing it would end the Official Account's channel for good."""
    state = _FailingState()
    settings = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with open_connection(plugin, settings, state) as app:
        state.is_down = True
        for text in ("one", "two"):
            platform.access = "ended"
            await app.sender.send(ADA, make_reply(text))
        state.is_down = False
        await app.sender.send(ADA, make_reply("three"))
    async with open_connection(plugin, settings, state) as app:
        await app.sender.send(ADA, make_reply("four"))
    assert [one.text for one in platform.messages()] == ["one", "two", "three", "four"]


async def test_a_send_that_is_cancelled_loses_no_refresh_token(platform: Simulator) -> None:
    """Zalo has used up the one before, and names the next one in this answer alone."""
    settings = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with open_connection(plugin, settings, MemoryChannelState()) as app:
        platform.access = "ended"
        platform.answer_late("renew", 0.2)
        sending, renewals = (
            asyncio.create_task(app.sender.send(ADA, make_reply("one"))),
            platform.counts["renew"],
        )
        while platform.counts["renew"] == renewals:  # noqa: ASYNC110 - the simulator sends no notification
            await asyncio.sleep(0.01)
        sending.cancel()
        await app.sender.send(ADA, make_reply("two"))
    assert [one.text for one in platform.messages()] == ["two"]


@pytest.mark.parametrize(("status", "error"), [(429, RateLimited), (502, ChannelError)])
async def test_a_renewal_that_fails_for_now_is_tried_again(
    platform: Simulator, status: int, error: type[ChannelError]
) -> None:
    """Only Zalo's refusal of the token asks for a new authorization."""
    settings = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with open_connection(plugin, settings, MemoryChannelState()) as app:
        platform.access = "ended"
        platform.fail("renew", status, {"error": -32}, headers={"Retry-After": "7"})
        with pytest.raises(error) as refused:
            await app.sender.send(ADA, make_reply("early"))
        assert not isinstance(refused.value, Unauthorized)
        await app.sender.send(ADA, make_reply("late"))
    assert [one.text for one in platform.messages()] == ["late"]


async def test_a_renewal_that_breaks_is_not_ambiguous(platform: Simulator) -> None:
    """Nothing was sent, so `ambiguous` does not decide; the refresh token was not used up."""
    settings = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with open_connection(plugin, settings, MemoryChannelState()) as app:
        platform.access = "ended"
        platform.cut("renew")
        with pytest.raises(Unreachable, match="nothing was sent"):
            await app.sender.send(ADA, make_reply("early"))
        await app.sender.send(ADA, make_reply("late"))
    assert [one.text for one in platform.messages()] == ["late"]


async def test_a_token_that_cannot_be_renewed_yet_is_used_until_its_end(platform: Simulator) -> None:
    """It is renewed minutes before its end; that Zalo fails then holds up nothing."""
    platform.token_seconds = 300
    settings = platform.settings(platform="oa", refresh_token=platform.refresh)
    async with open_connection(plugin, settings, MemoryChannelState()) as app:
        platform.fail("renew", 503, {})
        await app.sender.send(ADA, make_reply("in time"))
        await app.sender.send(ADA, make_reply("renewed"))
    assert [one.text for one in platform.messages()] == ["in time", "renewed"]
    assert platform.counts["renew"] == 3


async def test_an_access_token_without_renewal_needs_the_operator(platform: Simulator) -> None:
    """The error names what to set."""
    with pytest.raises(Unauthorized, match="refresh_token"):
        async with open_connection(plugin, account(platform, access_token="access-that-ended")):
            pass
    findings = await plugin.probe(
        plugin.settings(**account(platform, access_token="access-that-ended")), TRUSTED
    )
    assert [one.ok for one in findings] == [False]
    assert all(one.ok for one in await plugin.probe(plugin.settings(**account(platform)), TRUSTED))


async def test_a_probe_does_not_use_up_the_refresh_token(platform: Simulator) -> None:
    """Without an access token it asks nothing, and says where the answer is and what is still to be set."""
    renewed = {"refresh_token": platform.refresh, "app_secret": "app-secret"}
    settings = plugin.settings(**account(platform, access_token=None, **renewed))
    asked, webhook = await plugin.probe(settings, TRUSTED)
    assert ("dovecote status" in asked.detail, "developers.zalo.me" in webhook.detail) == (True, True)
    assert platform.counts["renew"] == 0


@pytest.mark.parametrize("kind", ["bot", "oa"])
async def test_a_reply_that_is_an_image_is_sent_as_a_picture(platform: Simulator, kind: str) -> None:
    """The picture goes by its link, with its caption."""
    settings = account(platform) if kind == "oa" else platform.settings()
    room = PERSON if kind == "oa" else ROOM
    async with open_connection(plugin, settings) as app:
        reply = make_reply("![the loft](https://files.example.org/loft.png)")
        await app.sender.send(Address(channel=CHANNEL, room=room), reply)
    (shown,) = platform.messages()
    assert (shown.text, shown.raw) == ("the loft", "https://files.example.org/loft.png")


@pytest.mark.parametrize("kind", ["bot", "oa"])
async def test_a_picture_that_zalo_refuses_is_sent_as_a_link(platform: Simulator, kind: str) -> None:
    """The person gets the caption and the link, and the chat stays open."""
    settings = account(platform) if kind == "oa" else platform.settings()
    address = Address(channel=CHANNEL, room=PERSON if kind == "oa" else ROOM)
    link = "https://files.example.org/loft.png"
    platform.broken_pictures.add(link)
    async with open_connection(plugin, settings) as app:
        await app.sender.send(address, make_reply(f"![the loft]({link})"))
    assert [(one.text, one.raw) for one in platform.messages()] == [(f"the loft ({link})", "")]


async def test_a_file_of_a_person_can_be_fetched(platform: Simulator) -> None:
    """It has the name that the person gave it."""
    platform.files["7"] = b"two pages"
    sent = {"url": f"{platform.url}/files/7", "name": "báo cáo.pdf", "size": "9", "type": "pdf"}
    recorder = UpdateRecorder()
    body = platform.oa_event("", kind="file", attachments=[{"type": "file", "payload": sent}])
    async with open_connection(plugin, account(platform)) as app:
        assert (await app.receiver.receive(post(body), recorder.accept)).status == 200
        (update,) = recorder.updates
        assert isinstance(update, Message)
        (file,) = update.attachments
        assert (file.name, file.media_type) == ("báo cáo.pdf", "application/pdf")
        assert b"".join([chunk async for chunk in app.sender.download(file.ref)]) == b"two pages"


@pytest.mark.parametrize(
    ("code", "error"),
    [(-32, RateLimited), (-201, Rejected), (-221, NotPermitted), (-227, Undeliverable)],
)
async def test_what_zalo_refuses_is_the_fault_of_what_it_names(
    platform: Simulator, code: int, error: type[ChannelError]
) -> None:
    """A wrong field is no dead chat, a limit is the whole account's, a missing right is the operator's."""
    platform.fail("send", 200, {"error": code, "message": "why"})
    async with open_connection(plugin, account(platform)) as app:
        with pytest.raises(error, match="why" if code != -32 else "rate") as caught:
            await app.sender.send(ADA, make_reply("hello"))
    assert type(caught.value) is error
    assert not isinstance(caught.value, RateLimited) or caught.value.scope == "account"


async def test_a_persons_picture_can_be_fetched(platform: Simulator) -> None:
    """The link of the picture is an attachment; nothing but a link is fetched."""
    platform.files["dove.jpg"] = bytes(range(256))
    recorder = UpdateRecorder()
    async with open_connection(plugin, platform.settings()) as bot, receiving(bot, recorder):
        await platform.push(platform.update("image", photo=f"{platform.url}/files/dove.jpg", caption="Who?"))
        (update,) = await recorder.wait(1)
        assert isinstance(update, Message)
        (picture,) = update.attachments
        assert b"".join([chunk async for chunk in bot.sender.download(picture.ref)]) == bytes(range(256))
        with pytest.raises(Rejected):
            await anext(aiter(bot.sender.download("file:///etc/passwd")))


async def test_the_bots_webhook_is_registered_with_its_secret(platform: Simulator) -> None:
    """A webhook that is set elsewhere is replaced, and a bot that polls removes it."""
    platform.hook = {"url": "https://elsewhere.example.org", "secret_token": "x" * 8}
    secret, url = "a-webhook-secret", "http://127.0.0.1:9/inbound"
    hooked = platform.settings(mode="webhook", webhook_secret=secret, webhook_url=url)
    async with open_connection(plugin, hooked) as bot, receiving(bot, UpdateRecorder()):
        await platform.wait_until(lambda: platform.hook == {"url": url, "secret_token": secret})
    recorder = UpdateRecorder()
    async with open_connection(plugin, platform.settings()) as bot, receiving(bot, recorder):
        await platform.wait_until(lambda: not platform.hook["url"])
        await platform.say(ROOM, "polled")
        await recorder.wait(1)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"token": "no token"},
        {"token": "1:a", "mode": "webhook"},
        {"platform": "oa", "app_id": APP, "oa_secret": OA_SECRET},
        {"platform": "oa", "app_id": APP, "access_token": "a" * 20},
        {"platform": "oa", "app_id": APP, "oa_secret": OA_SECRET, "refresh_token": "r" * 20},
    ],
)
def test_settings_that_lack_a_secret_are_refused(given: dict[str, str]) -> None:
    """The error never shows a value."""
    with pytest.raises(ValidationError) as caught:
        plugin.settings.model_validate(given)
    assert OA_SECRET not in str(caught.value)


async def test_a_body_that_is_no_event_is_not_accepted(platform: Simulator) -> None:
    """An Official Account's signature needs the event's timestamp; a list has none."""
    async with open_connection(plugin, account(platform)) as app:
        for body in (b"[]", b"garbage", json.dumps({"timestamp": {}}).encode()):
            request = WebhookRequest(headers={"x-zevent-signature": "mac=00"}, body=body)
            assert (await app.receiver.receive(request, UpdateRecorder().accept)).status == 401
