"""Files both ways over HTTP and the socket: results with signed links, attachments in the inbox."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from api_server import ApiClient
from files_gateway import ADMIN_KEY, ENV, FilesGateway, inline
from gateway.store.accounts.stored_bytes import ROW_BYTES
from gateway_process import gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, images_of, last_text

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesGateway]:
    """Run one gateway for all tests, with two accounts and a small file limit."""
    async with (
        gateway(tmp_path_factory.mktemp("files") / "data", env=ENV) as process,
        aiohttp.ClientSession() as session,
    ):
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = await operator.call("POST", "/accounts", {"name": "other"})
        yield FilesGateway(
            process=process,
            mine=ApiClient(session=session, url=process.url, key=process.key),
            other=ApiClient(session=session, url=process.url, key=made.body["key"]),
            anonymous=ApiClient(session=session, url=process.url, key=""),
        )


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
WRITE_OUTBOX = (
    "!mkdir -p outbox/deep; printf 'one' > outbox/result.txt; printf '<html>' > 'outbox/deep/p age.html'"
)


async def test_files_of_a_turn_are_reported_with_links_that_fetch_it(files_gateway: FilesGateway) -> None:
    """Message and finish have the files; a link is public, a bare path is for the owner alone."""
    conversation, status = await files_gateway.turn("left", WRITE_OUTBOX)
    (said,) = await files_gateway.events_of_kind(conversation, "message.completed")
    (done,) = await files_gateway.events_of_kind(conversation, "agent.finished")
    page, result = said["files"]
    assert [(one["name"], one["size"], one["type"]) for one in (page, result)] == [
        ("p age.html", 6, "text/html"),
        ("result.txt", 3, "text/plain"),
    ]
    assert result["sha256"] == hashlib.sha256(b"one").hexdigest()
    assert [one["id"] for one in done["files"]] == [page["id"], result["id"]]
    assert [one["id"] for one in status.body["files"]] == [page["id"], result["id"]]
    fetched = await files_gateway.anonymous.call("GET", page["url"])
    assert (fetched.status, fetched.body) == (200, b"<html>")
    assert fetched.headers["Content-Type"] == "application/octet-stream"
    assert fetched.headers["Content-Disposition"].startswith("attachment")
    assert fetched.headers["X-Content-Type-Options"] == "nosniff"
    bare = result["url"].partition("?")[0]
    assert (await files_gateway.mine.call("GET", bare)).body == b"one"
    assert (await files_gateway.other.call("GET", bare)).status == 404
    assert (await files_gateway.anonymous.call("GET", bare)).status == 404


async def test_wrong_and_expired_links_are_the_same_nothing(files_gateway: FilesGateway) -> None:
    """A changed link fetches nothing, and the refusal does not reveal the reason."""
    conversation, _ = await files_gateway.turn(
        "links", "!mkdir -p outbox; echo x > outbox/x; echo y > outbox/y"
    )
    (said,) = await files_gateway.events_of_kind(conversation, "message.completed")
    one, two = (file["url"] for file in said["files"])
    signature = one.partition("signature=")[2]
    wrong = [
        one.replace("expires=1", "expires=2"),
        one[:-4] + "AAAA",
        one.replace(said["files"][0]["id"], said["files"][1]["id"]),
        one.replace(said["files"][0]["id"], "fil_none"),
        two.replace(two.partition("signature=")[2], signature),
        f"{one.partition('?')[0]}?expires=1&signature={signature}",
        f"{one.partition('?')[0]}?expires=nonsense&signature=%FF",
    ]
    answers = [await files_gateway.anonymous.call("GET", url) for url in wrong]
    assert [answer.status for answer in answers] == [404] * len(wrong)
    assert len({answer.body["detail"] for answer in answers}) == 1


async def test_each_file_is_sent_once_and_a_changed_one_again(files_gateway: FilesGateway) -> None:
    """Files that stay in the outbox are not sent again with every turn, in any conversation."""
    conversation, _ = await files_gateway.turn("once", "!mkdir -p outbox; echo 1 > outbox/once")
    await files_gateway.turn("once", "!ls outbox; touch outbox/once")
    await files_gateway.turn("once", "!echo 2 > outbox/once")
    other, _ = await files_gateway.turn("another", "!ls outbox")
    said = await files_gateway.events_of_kind(conversation, "message.completed")
    assert [len(one["files"]) for one in said] == [1, 0, 1]
    assert [one["files"] for one in await files_gateway.events_of_kind(other, "message.completed")] == [[]]


async def test_links_out_and_what_is_too_much_are_declined(files_gateway: FilesGateway) -> None:
    """A symbolic link is not sent; files too large or too many are reported once."""
    script = (
        "!mkdir -p outbox; ln -s $(printf '\\57etc\\57passwd') outbox/link; "
        "yes | head -c 100001 > outbox/a-large; "
        "for name in b c d e; do echo $name > outbox/$name; done"
    )
    conversation, _ = await files_gateway.turn("much", script)
    await files_gateway.turn("much", "!echo again")
    said, notice, again = await files_gateway.events_of_kind(conversation, "message.completed")
    assert [one["name"] for one in said["files"]] == ["b", "c", "d"]
    assert (notice["role"], again["files"]) == ("notice", [])
    assert "outbox/a-large" in notice["text"]
    assert "outbox/e" in notice["text"]
    assert "link" not in notice["text"]


async def test_a_job_s_files_are_reported_with_its_end(files_gateway: FilesGateway) -> None:
    """The job's event and its follow-up's finish have its files; the follow-up's message does not."""
    conversation, _ = await files_gateway.turn("job", "!&mkdir -p outbox; echo late > outbox/late.txt")
    async with asyncio.timeout(30):
        while len(await files_gateway.events_of_kind(conversation, "agent.finished")) < 2:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    (ended,) = await files_gateway.events_of_kind(conversation, "job.completed")
    _, follow_up = await files_gateway.events_of_kind(conversation, "agent.finished")
    said = await files_gateway.events_of_kind(conversation, "message.completed")
    assert [one["name"] for one in ended["files"]] == ["late.txt"]
    assert [one["id"] for one in follow_up["files"]] == [ended["files"][0]["id"]]
    asked = await files_gateway.mine.call("GET", f"/status/{ended['resultId']}")
    assert [one["name"] for one in asked.body["files"]] == ["late.txt"]
    shown = await files_gateway.mine.call("GET", f"/jobs/{ended['resultId']}")
    whole = await files_gateway.mine.call("GET", "/conversations/job/snapshot")
    for job in (shown.body, whole.body["jobs"][0]):
        assert [one["id"] for one in job["files"]] == [ended["files"][0]["id"]]
    assert [one["files"] for one in said] == [[], []]


async def test_attachments_land_in_the_inbox_under_safe_names(files_gateway: FilesGateway) -> None:
    """Names neither leave the inbox nor overwrite each other, and the files belong to the conversation."""
    attached = [inline("../../etc/passwd", b"1"), inline("a.txt", b"22"), inline("a.txt", b"333")]
    conversation, status = await files_gateway.turn(
        "names", "!cd inbox; ls -1 a*.txt passwd; cat a*.txt passwd", attachments=attached
    )
    assert "a (2).txt\na.txt\npasswd\n333221" in status.body["output"]
    (received,) = await files_gateway.events_of_kind(conversation, "message.received")
    assert [(one["name"], one["size"]) for one in received["files"]] == [
        ("passwd", 1),
        ("a.txt", 2),
        ("a.txt", 3),
    ]
    assert (await files_gateway.anonymous.call("GET", received["files"][2]["url"])).body == b"333"
    assert (await files_gateway.mine.call("DELETE", f"/conversations/{conversation}")).status in {202, 204}
    assert (await files_gateway.anonymous.call("GET", received["files"][2]["url"])).status == 404


async def test_a_posted_file_is_named_by_its_link(files_gateway: FilesGateway) -> None:
    """What was posted to /files, or came out as a result, goes in by its url; another's does not."""
    headers = {"Authorization": f"Bearer {files_gateway.mine.key}"}
    url = f"{files_gateway.mine.url}/files?name=big.bin"
    async with files_gateway.mine.session.post(url, data=b"z" * 90_000, headers=headers) as answer:
        assert answer.status == 201
        posted = await answer.json()
    _, status = await files_gateway.turn(
        "posted", "!wc -c < inbox/big.bin", attachments=[{"name": "big.bin", "url": posted["url"]}]
    )
    assert "90000" in status.body["output"]
    refused = await files_gateway.other.call(
        "POST", "/agents/default/turns", {"input": "x", "attachments": [{"name": "b", "url": posted["url"]}]}
    )
    assert refused.status == 422
    assert refused.body["errors"][0]["pointer"] == "/attachments/0/url"


REFUSED: tuple[dict[str, str], ...] = (
    {"name": "a", "url": "http://169.254.169.254/latest"},
    {"name": "a", "url": "/files/fil_1/a?expires=1&signature=x"},
    {"name": "a", "content": "not base64!"},
    {"name": "a"},
    {"name": "a", "content": "QQ==", "url": "/x"},
    {"name": "a", "content": "A" * (14 * 1024 * 1024)},
)


async def test_what_cannot_be_attached_is_refused(files_gateway: FilesGateway) -> None:
    """Nothing is fetched or stored, and the answer names the wrong part."""
    headers = {"Authorization": f"Bearer {files_gateway.mine.key}", "Content-Type": "application/json"}
    for attachment in REFUSED:
        body = io.BytesIO(json.dumps({"input": "x", "attachments": [attachment]}).encode())
        url = f"{files_gateway.mine.url}/agents/default/turns"
        async with files_gateway.mine.session.post(url, data=body, headers=headers) as answer:
            problem = await answer.json()
        assert answer.status == 422, problem
        assert problem["errors"][0]["pointer"].startswith("/attachments")


async def test_a_too_large_file_is_reported_to_the_person_and_the_agent(files_gateway: FilesGateway) -> None:
    """A file above the operator's limit is refused, and the user and the model get the reason."""
    conversation, status = await files_gateway.turn(
        "large", "what is it?", attachments=[inline("large.bin", b"\0" * 100_001)]
    )
    notice, said = await files_gateway.events_of_kind(conversation, "message.completed")
    assert "large.bin" in notice["text"]
    assert "the limit is" in notice["text"]
    assert "[attachment large.bin is not here" in said["text"]
    assert status.body["state"] == "completed"


async def test_without_a_workspace_pictures_and_texts_are_of_use(files_gateway: FilesGateway) -> None:
    """Such an agent gets pictures and what texts say; what cannot be stored is reported, nothing is swept."""
    made = await files_gateway.mine.call("POST", "/accounts/me/agents", {"name": "bare", "config": {}})
    assert made.status == 201, made.body
    texts = [inline("a.csv", b'1,"2"\n'), inline("b.txt", b"b" * 40_000), inline("c.txt", b"c" * 40_000)]
    refused = [inline("d.txt", b"d" * 70_000), inline("e.zip", b"PK\x03\x04")]
    attached = [inline("cat.png", PNG), *texts, *refused]
    body = {"input": "look", "conversation": "bare", "attachments": attached}
    taken = await files_gateway.mine.call("POST", "/agents/bare/turns", body)
    async with asyncio.timeout(30):
        while not await files_gateway.events_of_kind(taken.body["conversationId"], "turn.completed"):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    *notices, said = await files_gateway.events_of_kind(taken.body["conversationId"], "message.completed")
    reasons = [notice["text"].partition(": there is no workspace")[0] for notice in notices]
    assert reasons == ["I could not receive `d.txt`", "I could not receive `e.zip`"]
    assert notices[0]["text"].endswith("the agent gets images, and texts of up to 64 kB.")
    assert "[attached image: cat.png, 16 bytes, image/png; there is no workspace" in said["text"]
    assert "[attached: a.csv, 6 bytes, text/csv; there is no workspace for it]" in said["text"]
    assert r'[the text of a.csv: "1,\"2\"\n"]' in said["text"]
    assert f'[the text of b.txt: "{"b" * 40_000}"]' in said["text"]
    assert "[the text of c.txt is not here: the texts before it fill the message]" in said["text"]
    assert "[attachment e.zip is not here: there is no workspace to write it to; " in said["text"]


async def test_a_socket_sends_attachments(files_gateway: FilesGateway) -> None:
    """The WebSocket's `send` accepts small files inline."""
    headers = {"Authorization": f"Bearer {files_gateway.mine.key}"}
    async with files_gateway.mine.session.ws_connect(
        f"{files_gateway.mine.url}/ws", headers=headers
    ) as socket:
        await socket.send_json({"type": "subscribe", "conversation": "ws", "after": 0})
        frame = {"type": "send", "conversation": "ws", "text": "!cat inbox/n.txt", "id": "1"}
        await socket.send_json(frame | {"attachments": [inline("n.txt", b"from a socket")]})
        bad = {"attachments": [{"name": "a", "url": "https://example.org/"}], "id": "2"}
        await socket.send_json(frame | bad)
        said: list[str] = []
        errors: list[str] = []
        async with asyncio.timeout(30):
            while not said or not errors:
                event = await socket.receive_json()
                said += [event["data"]["text"]] if event["type"] == "message.completed" else []
                errors += [event["code"]] if event["type"] == "error" else []
    assert "from a socket" in said[0]
    assert errors == ["invalid"]


async def test_a_model_sees_what_is_attached_and_delivers_files(tmp_path: Path) -> None:
    """A picture reaches the model in its turn alone; files are sent here and elsewhere, or refused."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        calls = [
            ToolCall(name="bash", args={"command": "echo 42 > answer.txt; mkdir -p d"}),
            ToolCall(name="deliver_file", args={"path": "answer.txt", "caption": "the answer"}),
            ToolCall(name="deliver_file", args={"path": "d"}),
            ToolCall(name="deliver_file", args={"path": "../x"}),
            ToolCall(name="deliver_file", args={"path": "nowhere"}),
            ToolCall(name="send_message", args={"to": "log", "text": "Filed.", "files": ["answer.txt"]}),
            ToolCall(name="send_message", args={"to": "log", "text": "Lost.", "files": ["answer.txt", "d"]}),
        ]
        if last_text(body).startswith("again"):
            return ScriptedTurn(text="no more")
        return (
            ScriptedTurn(calls=[calls[len(results)]])
            if len(results) < len(calls)
            else ScriptedTurn(text=str(results))
        )

    async with OpenAIServer(script) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with gateway(tmp_path / "data", env=ENV | env) as process, aiohttp.ClientSession() as session:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            harness = FilesGateway(process=process, mine=mine, other=mine, anonymous=mine)
            sandbox = {"config": {"provider": "host", "permissionMode": "bypass"}}
            assert (await mine.call("PATCH", "/accounts/me/sandboxes/default", sandbox)).status == 200
            sends = {"to": {"log": {"conversation": "log"}}, "approval": "never"}
            await mine.call("PATCH", "/accounts/me/agents/default", {"config": {"sends": sends}})
            log, _ = await harness.turn("log", "again")
            conversation, _ = await harness.turn("model", "go on", attachments=[inline("cat.png", PNG)])
            await harness.turn("model", "again")
            filed = [
                (one["text"], [file["name"] for file in one["files"]], one.get("sent_by") is not None)
                for one in await harness.events_of_kind(log, "message.completed")
            ]
            said = [
                one for one in await harness.events_of_kind(conversation, "message.completed") if one["files"]
            ]
    _log, first, *_, last = model.bodies
    assert images_of(first) == ["data:image/png;base64," + base64.b64encode(PNG).decode()]
    assert "[attached: inbox/cat.png, 16 bytes, image/png]" in last_text(first)
    assert images_of(last) == []
    (answer,) = said
    assert [(one["name"], one["caption"]) for one in answer["files"]] == [("answer.txt", "the answer")]
    assert filed == [("no more", [], False), ("Filed.", ["answer.txt"], True)]
    for words in ("is queued", "is a directory", "was not sent", "no such file", "the message was not sent"):
        assert words in answer["text"]


async def test_a_message_runs_again_with_its_attachments(files_gateway: FilesGateway) -> None:
    """The files of the original message arrive for the new turn too, uploaded or inline, edited or not."""
    mine = files_gateway.mine
    status, uploaded = await post_file(mine, b"2")
    assert status == 201
    attached = [inline("again.txt", b"1"), {"name": "again.bin", "url": uploaded["url"]}]
    conversation, first = await files_gateway.turn(
        "again", "!cat inbox/again.txt inbox/again.bin", attachments=attached
    )
    assert first.body["output"].strip("`\n") == "12"
    queued = await mine.call("POST", f"/turns/{first.body['id']}/rerun", {"text": "!cat inbox/again*"})
    assert queued.status == 202, queued.body
    said = await files_gateway.ended(queued.body["turnId"])
    assert sorted(said.body["output"].strip("`\n")) == ["1", "1", "2", "2"]
    received = await files_gateway.events_of_kind(conversation, "message.received")
    assert [[file["name"] for file in one["files"]] for one in received] == [["again.txt", "again.bin"]] * 2


async def test_an_account_stores_no_more_than_its_quota(files_gateway: FilesGateway) -> None:
    """Uploads, workspace files and inline attachments share one quota, which is the account's alone."""
    full, space = files_gateway.other, "/accounts/me/workspaces"
    workspace = (await full.call("POST", space, {"name": "full", "config": {}})).body["id"]
    await put(full, f"{space}/{workspace}/files/kept", b"w" * 600_000)
    refused = [await post_file(full, b"%d" % number * 90_000) for number in range(8)]
    assert {answer[0] for answer in refused} == {201, 413}
    problem = refused[-1][1]
    assert problem["errors"][0]["pointer"] == ""
    assert "may store 1.0 MB" in problem["detail"]
    assert "files.account_bytes" in problem["detail"]
    inline = {"name": "a.txt", "content": base64.b64encode(b"i" * 500_000).decode()}
    shell = {"name": "default", "config": {"model": "builtin:shell"}}
    assert (await full.call("POST", "/accounts/me/agents", shell)).status == 201
    turn = {"input": "!true", "attachments": [inline]}
    answer = await full.call("POST", "/agents/default/turns", turn)
    assert (answer.status, answer.body["errors"][0]["pointer"]) == (413, "/attachments/0/content")
    assert (await put(full, f"{space}/{workspace}/files/more", b"w" * 600_000))[0] == 413
    copy = await full.call("POST", f"{space}/{workspace}/files:copy", {"path": "kept", "to": "more"})
    assert copy.status == 413
    assert (await post_file(files_gateway.mine, b"x" * 90_000))[0] == 201


async def test_messages_jobs_and_agents_files_count_against_the_quota_of_the_account(
    files_gateway: FilesGateway,
) -> None:
    """They fill an account with a limit of its own, and are refused with the value and the remedy."""
    operator = replace(files_gateway.anonymous, key=ADMIN_KEY)
    made = (await operator.call("POST", "/accounts", {"name": "small"})).body
    small, storage = replace(operator, key=made["key"]), f"/accounts/{made['id']}/storage"
    shell = {"name": "default", "config": {"model": "builtin:shell"}}
    agent = (await small.call("POST", "/accounts/me/agents", shell)).body["id"]
    before = (await small.call("GET", "/accounts/me/storage")).body
    assert before["limit_bytes"] == 1_000_000
    assert 2 * ROW_BYTES < before["used_bytes"] < 4 * ROW_BYTES  # its key and its agent
    set_to = await operator.call("PUT", storage, {"limit_bytes": 100_000})
    assert set_to.body == {**before, "limit_bytes": 100_000}
    assert (await operator.call("GET", storage)).body == set_to.body
    knowledge = f"/accounts/me/agents/{agent}/files/knowledge"
    assert (await put(small, f"{knowledge}/a.txt", b"k" * 40_000))[0] == 204
    turn = {"input": "!echo " + "m" * 25_000, "conversation": "long"}
    assert (await small.call("POST", "/agents/default/turns", turn)).status == 202
    refused = await small.call("POST", "/agents/default/turns", {"input": "m" * 60_000})
    assert refused.status == 413
    assert "may store 100 kB" in refused.body["detail"]
    assert "PUT /accounts/{id}/storage" in refused.body["detail"]
    assert (await put(small, f"{knowledge}/b.txt", b"k" * 60_000))[0] == 413
    assert (await operator.call("PUT", storage, {"limit_bytes": 0})).body["limit_bytes"] == 0
    assert (await put(small, f"{knowledge}/b.txt", b"k" * 60_000))[0] == 204
    assert (await operator.call("PUT", storage, {"limit_bytes": None})).body["limit_bytes"] == 1_000_000
    assert (await small.call("PUT", storage, {"limit_bytes": None})).status in (401, 403, 404)


async def put(client: ApiClient, path: str, content: bytes) -> tuple[int, Any]:
    """Upload a workspace file."""
    headers = {"Authorization": f"Bearer {client.key}"}
    async with client.session.put(client.url + path, data=content, headers=headers) as answer:
        return answer.status, await answer.json() if answer.status != 204 else None


async def post_file(client: ApiClient, content: bytes) -> tuple[int, Any]:
    """Upload a file for messages."""
    headers = {"Authorization": f"Bearer {client.key}"}
    url = f"{client.url}/files?name=a.bin"
    async with client.session.post(url, data=content, headers=headers) as answer:
        return answer.status, await answer.json()
