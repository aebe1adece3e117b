"""What a channel promises about webhooks: forged requests are refused, and no body causes an error."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from channels.message import Message
from channels.port import ChannelPlugin, Connection
from channels.testing.connections import UpdateRecorder, open_connection
from channels.testing.rig import WEBHOOK_SECRET, WebhookRig

BAD_SECRETS = [
    None,
    "",
    "wrong",
    WEBHOOK_SECRET[:-1],
    WEBHOOK_SECRET + "1",
    f"{WEBHOOK_SECRET}, {WEBHOOK_SECRET}",
    "ü\udcff",
]


_NAMES = (
    "update_id message edited_message callback_query from chat id text date entities message_id data photo "
    "type sender_chat is_topic_message message_thread_id user media_group_id caption "
    "message_reaction new_reaction old_reaction emoji"
)
_KEYS = st.sampled_from(_NAMES.split()) | st.text(max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=25,
)
_BODIES = (
    st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()) | st.just(b"[" * 100_000)
)


async def _accept(_: object) -> None:
    """Accept any update."""


def _needs_signatures(rig: WebhookRig) -> None:
    if not rig.signs_webhooks:
        pytest.skip("the platform signs nothing, and the content of its posts is not trusted")


class WebhookContract:
    """What a channel that can be posted to promises; its rig is a WebhookRig."""

    async def test_a_posted_update_is_answered_after_it_is_accepted(
        self, plugin: ChannelPlugin, rig: WebhookRig
    ) -> None:
        """An update is answered with 200 once it is stored; a failure gives 503, and the platform retries."""
        _needs_signatures(rig)
        async with open_connection(plugin, rig.webhook_settings()) as connection:
            recorder = UpdateRecorder(refusals=1)
            request = rig.webhook_request(rig.update("posted"))
            statuses = [
                (await connection.receiver.receive(request, recorder.accept)).status for _ in range(2)
            ]
        assert statuses == [503, 200]
        assert [update.text for update in recorder.updates if isinstance(update, Message)] == ["posted"]

    @pytest.mark.parametrize("secret", BAD_SECRETS)
    async def test_a_wrong_signature_is_401(
        self, plugin: ChannelPlugin, rig: WebhookRig, secret: str | None
    ) -> None:
        """Requests that are unsigned, wrongly signed or signed twice are refused."""
        _needs_signatures(rig)
        recorder = UpdateRecorder()
        async with open_connection(plugin, rig.webhook_settings()) as connection:
            for body in (rig.update("x"), b"garbage"):
                assert (
                    await connection.receiver.receive(
                        rig.webhook_request(body, secret=secret), recorder.accept
                    )
                ).status == 401
        assert recorder.updates == []

    async def test_a_channel_that_polls_refuses_webhooks(
        self, connection: Connection, rig: WebhookRig
    ) -> None:
        """In polling mode a request with the right signature is refused too."""
        assert (
            await connection.receiver.receive(rig.webhook_request(rig.update("x")), UpdateRecorder().accept)
        ).status == 401

    async def test_an_unsigned_post_is_not_believed(self, plugin: ChannelPlugin, rig: WebhookRig) -> None:
        """A platform without signatures announces updates; what a post says is never accepted itself."""
        if rig.signs_webhooks:
            pytest.skip("the platform signs its posts")
        recorder = UpdateRecorder()
        async with open_connection(plugin, rig.webhook_settings()) as connection:
            request = rig.webhook_request(rig.update("forged"))
            assert (await connection.receiver.receive(request, recorder.accept)).status == 200
        assert recorder.updates == []

    async def test_no_body_causes_an_error(self, plugin: ChannelPlugin, rig: WebhookRig) -> None:
        """Any body is answered with 200, 400 or 401."""
        async with open_connection(plugin, rig.webhook_settings()) as connection:
            statuses: set[int] = set()

            @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
            @given(_BODIES, st.sampled_from([WEBHOOK_SECRET, WEBHOOK_SECRET, None, "wrong"]))
            def post(body: bytes, secret: str | None) -> None:
                request = rig.webhook_request(body, secret=secret)
                statuses.add(asyncio.run(connection.receiver.receive(request, _accept)).status)

            await asyncio.to_thread(post)
        assert statuses <= {200, 400, 401}

    async def test_webhook_secrets_are_in_no_repr_and_no_log(
        self, plugin: ChannelPlugin, rig: WebhookRig, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Tokens and webhook secrets appear neither in reprs nor in logs when a signature is wrong."""
        caplog.set_level(logging.DEBUG)
        parsed = plugin.settings(**rig.webhook_settings())
        seen = [repr(parsed), str(parsed), parsed.model_dump_json()]
        with capture_logs() as lines:
            async with open_connection(plugin, rig.webhook_settings()) as connection:
                seen += [repr(connection), repr(vars(connection.receiver)), repr(vars(connection.sender))]
                request = rig.webhook_request(rig.update("x"), secret="wrong")
                await connection.receiver.receive(request, _accept)
        seen += [str(line) for line in lines]
        seen += [record.getMessage() for record in caplog.records if record.name != "aiohttp.access"]
        assert not [text for text in seen if any(secret in text for secret in rig.secrets)]
