"""The whole URL table: every path, who may ask, what it takes and gives."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from gateway import console
from gateway.store.accounts.records import Kind
from gateway.web import asyncapi, console_page, openapi
from gateway.web.admin import (
    accounts,
    agent_files,
    audit,
    channels,
    health,
    operator_accounts,
    pairings,
    records,
    sandboxes,
    usage,
    webhook_replay,
    webhooks,
)
from gateway.web.api import (
    approvals,
    conversations,
    deliveries,
    downloads,
    job_completion,
    jobs,
    trace,
    turn_list,
    turns,
    workspace_files,
)
from gateway.web.compat import agui
from gateway.web.compat import openai_routes as openai_table
from gateway.web.http import attachments
from gateway.web.http.auth import Access, Admin, Key, Platform, Public
from gateway.web.http.pagination import Items, Page
from gateway.web.http.route import Handler, Route
from gateway.web.stream import handlers

ME = "/accounts/me"
READ = Key("read")
CHAT = Key("chat")
JOBS = Key("jobs")
OWN = Key("admin")
OPEN = Public()


def _route(method: str, path: str, access: Access, handler: Handler, /, summary: str, **more: Any) -> Route:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    tag = parts[2] if path.startswith(f"{ME}/") else parts[0] if parts else "console"
    return Route(
        method=method, path=path, access=access, handler=handler, summary=summary, **{"tag": tag} | more
    )


_get = partial(_route, "GET")
_post = partial(_route, "POST")
_patch = partial(_route, "PATCH")
_delete = partial(_route, "DELETE", status=204)
_made = partial(_post, status=201, also={409: "the name is in use"})
_changed = partial(_patch, also={409: "the name is in use, or the record is managed"})
_removed = partial(_delete, also={409: "something refers to it, or it is managed"})


def _kind(kind: Kind, plural: str, gives: type[records.RecordShown]) -> tuple[Route, ...]:
    """Return the five routes of one kind of record."""
    every, one = f"{ME}/{plural}", f"{ME}/{plural}/{{id}}"
    listed = Items[records.RecordShown]
    take, change = records.NewRecord, records.RecordChange
    return (
        _made(every, OWN, records.create(kind), f"make one of the {plural}", takes=take, gives=gives),
        _get(every, READ, records.listing(kind), f"list the {plural}", query=Page, gives=listed),
        _get(one, READ, records.show(kind), f"show one of the {plural}", gives=records.RecordShown),
        _changed(one, OWN, records.change(kind), f"change one of the {plural}", takes=change, gives=gives),
        _removed(one, OWN, records.remove(kind), f"delete one of the {plural}"),
    )


def _accounts() -> tuple[Route, ...]:
    a, keys, key = accounts, f"{ME}/keys", f"{ME}/keys/{{id}}"
    return (
        _made("/accounts", Admin(), a.create_account, "make one", takes=a.NewAccount, gives=a.AccountMade),
        _get(ME, READ, a.show_account, "show the account that asks", gives=a.AccountShown),
        _delete(ME, OWN, a.remove_account, "delete the account that asks, with everything it has"),
        _made(keys, OWN, a.create_key, "make a key; told once", takes=a.NewKey, gives=a.KeyMade),
        _get(keys, OWN, a.list_keys, "list the keys", query=Page, gives=Items[a.KeyShown]),
        _get(key, OWN, a.show_key, "show a key", gives=a.KeyShown),
        _patch(key, OWN, a.change_key, "rename or narrow a key", takes=a.KeyChange, gives=a.KeyShown),
        _delete(key, OWN, a.revoke_key, "revoke a key"),
    )


def _channels() -> tuple[Route, ...]:
    r, every, one = records, f"{ME}/channels", f"{ME}/channels/{{id}}"
    shown, listed = r.ChannelShown, Items[records.ChannelShown]
    posted = "where the platform posts; its adapter verifies"
    return (
        _made(every, OWN, r.create_channel, "open a channel", takes=r.NewChannel, gives=shown),
        _get(every, READ, r.listing("channel"), "list the channels", query=Page, gives=listed),
        _get(one, READ, r.show("channel"), "show a channel", gives=shown),
        _changed(one, OWN, r.change_channel, "change a channel", takes=r.ChannelChange, gives=shown),
        _removed(one, OWN, r.remove("channel"), "close a channel"),
        _post("/channels/{id}/test", OWN, channels.test_channel, "ask its platform", gives=channels.Tested),
        _post("/channels/{id}/inbound", Platform(), channels.receive, posted, raw=True, hidden=True),
    )


def _pairings() -> tuple[Route, ...]:
    p, every = pairings, f"{ME}/channels/{{id}}/pairings"
    listed, also = Items[pairings.PairingShown], {429: "too many wrong codes"}
    return (
        _post(every, OWN, p.pair, "let in who has this code", takes=p.Code, gives=p.PairingShown, also=also),
        _get(every, READ, p.list_pairings, "who is let in, who waits", query=p.PairingPage, gives=listed),
        _delete(f"{every}/{{person}}", OWN, p.unpair, "let somebody in no more"),
    )


def _webhooks() -> tuple[Route, ...]:
    w, every, one = webhooks, f"{ME}/webhooks", f"{ME}/webhooks/{{id}}"
    shown, told, listed = w.WebhookShown, w.WebhookMade, Items[webhooks.WebhookShown]
    return (
        _made(every, OWN, w.create_webhook, "make one; secret told once", takes=w.NewWebhook, gives=told),
        _get(every, READ, w.list_webhooks, "list the webhooks", query=Page, gives=listed),
        _get(one, READ, w.show_webhook, "show a webhook", gives=shown),
        _changed(one, OWN, w.change_webhook, "change a webhook", takes=w.WebhookChange, gives=shown),
        _delete(one, OWN, w.remove_webhook, "delete a webhook"),
        _post("/webhooks/{id}/rotate", OWN, w.rotate_webhook, "give it a new secret", gives=told),
    )


def _turns() -> tuple[Route, ...]:
    t, taken = turns, turns.TurnTaken
    gone = {409: "the conversation belongs to another agent", 429: "too much is waiting there"}
    accept = partial(_post, status=202, gives=taken, also=gone, body_bytes=attachments.BODY_BYTES)
    step, stat = Items[turns.StepShown], t.TurnStatus
    either: Any = t.AnyStatus
    return (
        accept("/agents/{id}/turns", CHAT, t.start_turn, "ask an agent", takes=t.NewTurn),
        accept("/conversations/{id}/messages", CHAT, t.say, "say something", takes=t.NewMessage),
        _get("/status/{id}", READ, t.status, "how a turn or a job stands", gives=either),
        _post("/turns/{id}/cancel", CHAT, t.cancel_turn, "cancel a turn", status=202, gives=stat),
        _get("/turns/{id}/log", READ, t.show_log, "a turn's tool calls", gives=step),
    )


def _talk() -> tuple[Route, ...]:
    c, a, one = conversations, approvals, "/conversations/{id}"
    many, asked = Items[conversations.ConversationShown], Items[approvals.ApprovalShown]
    winner = {409: "somebody decided otherwise first; `winner` is what stands"}
    decided = partial(_post, takes=a.Decision, gives=a.ApprovalShown, also=winner)
    paged, talk = c.ConversationPage, c.ConversationShown
    return (
        _get("/conversations", READ, c.list_conversations, "list them", query=paged, gives=many),
        _get(one, READ, c.show_conversation, "show a conversation", gives=talk),
        _patch(one, CHAT, c.change_conversation, "its queue", takes=c.ConversationChange, gives=talk),
        _delete(one, OWN, c.remove_conversation, "delete a conversation: rows, events, files and jobs"),
        _get(f"{one}/snapshot", READ, c.snapshot, "what stands in it now", gives=c.Snapshot),
        _get("/approvals", READ, a.list_approvals, "list approvals", query=a.ApprovalPage, gives=asked),
        _get("/approvals/{id}", READ, a.show_approval, "show an approval", gives=a.ApprovalShown),
        decided("/approvals/{id}", CHAT, a.decide, "approve or deny a tool call"),
    )


def _jobs() -> tuple[Route, ...]:
    j, one, listed = jobs, "/jobs/{id}", Items[jobs.JobShown]
    return (
        _get("/jobs", READ, j.list_jobs, "list the jobs", query=j.JobPage, gives=listed),
        _get(one, READ, j.show_job, "show a job", gives=j.JobDetail),
        _get(f"{one}/logs", READ, j.show_log, "what it has written", gives=j.JobLog),
        _post(f"{one}/stop", JOBS, j.stop_job, "stop a job", status=202, gives=j.JobDetail),
    )


def _deliveries() -> tuple[Route, ...]:
    d, r, one, hook = deliveries, webhook_replay, "/deliveries/{id}", "/webhooks/{id}"
    listed, detail = Items[deliveries.DeliveryShown], d.DeliveryDetail
    again = partial(_post, status=202, also={409: "the webhook is disabled"})
    return (
        _get("/deliveries", READ, d.list_deliveries, "list them", query=d.DeliveryPage, gives=listed),
        _get(one, READ, d.show_delivery, "one with its attempts", gives=detail),
        _post(f"{one}/retry", OWN, d.retry_delivery, "send it again", status=202, gives=detail),
        _post(f"{one}/drop", OWN, d.drop_delivery, "give it up", gives=detail),
        again(f"{hook}/test", OWN, r.test_webhook, "send a test event", gives=r.Sent),
        again(f"{hook}/replay", OWN, r.replay_webhook, "send again", takes=r.Replay, gives=r.Replayed),
    )


def _open() -> tuple[Route, ...]:
    files = f"/{{file:{'|'.join(re.escape(name) for name in console.FILES)}|}}"
    unready = {503: "not ready"}
    return (
        _get("/healthz", OPEN, health.alive, "is the process alive", gives=health.Alive),
        _get(
            "/readyz",
            OPEN,
            health.ready,
            "does it receive",
            query=health.Readiness,
            gives=health.Ready,
            also=unready,
        ),
        _get("/metrics", OPEN, health.metrics, "counters for Prometheus", media="text/plain"),
        _get(
            "/openapi.json",
            OPEN,
            openapi.handler_for(lambda: ROUTES),
            "this document",
            media="application/json",
        ),
        _get(files, OPEN, console_page.serve, "the console", media="text/html", hidden=True, tag="console"),
    )


ROUTES: tuple[Route, ...] = (
    *_accounts(),
    *_kind("agent", "agents", records.AgentShown),
    *_kind("workspace", "workspaces", records.RecordShown),
    *_kind("sandbox", "sandboxes", records.RecordShown),
    *_kind("skill", "skills", records.RecordShown),
    *agent_files.ROUTES,
    *workspace_files.ROUTES,
    *_channels(),
    *_pairings(),
    *_webhooks(),
    *_turns(),
    *turn_list.ROUTES,
    *_talk(),
    *_jobs(),
    *_deliveries(),
    *sandboxes.ROUTES,
    *usage.ROUTES,
    *operator_accounts.ROUTES,
    *job_completion.ROUTES,
    *downloads.ROUTES,
    *trace.ROUTES,
    *audit.ROUTES,
    *handlers.ROUTES,
    *openai_table.ROUTES,
    *agui.ROUTES,
    *asyncapi.ROUTES,
    *_open(),
)
