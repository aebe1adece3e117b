"""The whole URL table: every path, who may ask, what it takes and gives."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from gateway import console
from gateway.store.accounts.records import RecordKind
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
from gateway.web.http.auth import Access, AdminAccess, KeyAccess, PlatformAccess, PublicAccess
from gateway.web.http.pagination import ListPage, PageQuery
from gateway.web.http.route import ApiRoute, Handler
from gateway.web.stream import handlers

ME = "/accounts/me"
READ = KeyAccess("read")
CHAT = KeyAccess("chat")
JOBS = KeyAccess("jobs")
ADMIN = KeyAccess("admin")
PUBLIC = PublicAccess()


def _route(
    method: str, path: str, access: Access, handler: Handler, /, summary: str, **more: Any
) -> ApiRoute:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    tag = parts[2] if path.startswith(f"{ME}/") else parts[0] if parts else "console"
    return ApiRoute(
        method=method, path=path, access=access, handler=handler, summary=summary, **{"tag": tag} | more
    )


_get = partial(_route, "GET")
_post = partial(_route, "POST")
_patch = partial(_route, "PATCH")
_delete = partial(_route, "DELETE", status=204)
_post_new = partial(_post, status=201, error_responses={409: "the name is in use"})
_patch_named = partial(_patch, error_responses={409: "the name is in use, or the record is managed"})
_delete_named = partial(_delete, error_responses={409: "something refers to it, or it is managed"})


def _record_routes(
    kind: RecordKind, plural: str, response_model: type[records.RecordResponse]
) -> tuple[ApiRoute, ...]:
    """Return the five routes of one kind of record."""
    every, one = f"{ME}/{plural}", f"{ME}/{plural}/{{id}}"
    listed = ListPage[records.RecordResponse]
    take, change = records.RecordCreate, records.RecordUpdate
    return (
        _post_new(
            every,
            ADMIN,
            records.create(kind),
            f"make one of the {plural}",
            request_model=take,
            response_model=response_model,
        ),
        _get(
            every,
            READ,
            records.list_all(kind),
            f"list the {plural}",
            query_model=PageQuery,
            response_model=listed,
        ),
        _get(
            one, READ, records.get(kind), f"show one of the {plural}", response_model=records.RecordResponse
        ),
        _patch_named(
            one,
            ADMIN,
            records.update(kind),
            f"change one of the {plural}",
            request_model=change,
            response_model=response_model,
        ),
        _delete_named(one, ADMIN, records.delete(kind), f"delete one of the {plural}"),
    )


def _accounts() -> tuple[ApiRoute, ...]:
    a, keys, key = accounts, f"{ME}/keys", f"{ME}/keys/{{id}}"
    return (
        _post_new(
            "/accounts",
            AdminAccess(),
            a.create_account,
            "make one",
            request_model=a.AccountCreate,
            response_model=a.AccountCreated,
        ),
        _get(ME, READ, a.get_account, "show the account that asks", response_model=a.AccountResponse),
        _delete(ME, ADMIN, a.delete_account, "delete the account that asks, with everything it has"),
        _post_new(
            keys,
            ADMIN,
            a.create_key,
            "make a key; told once",
            request_model=a.KeyCreate,
            response_model=a.KeyCreated,
        ),
        _get(
            keys,
            ADMIN,
            a.list_keys,
            "list the keys",
            query_model=PageQuery,
            response_model=ListPage[a.KeyResponse],
        ),
        _get(key, ADMIN, a.get_key, "show a key", response_model=a.KeyResponse),
        _patch(
            key,
            ADMIN,
            a.update_key,
            "rename or narrow a key",
            request_model=a.KeyUpdate,
            response_model=a.KeyResponse,
        ),
        _delete(key, ADMIN, a.revoke_key, "revoke a key"),
    )


def _channels() -> tuple[ApiRoute, ...]:
    r, every, one = records, f"{ME}/channels", f"{ME}/channels/{{id}}"
    shown, listed = r.ChannelResponse, ListPage[records.ChannelResponse]
    posted = "where the platform posts; its adapter verifies"
    return (
        _post_new(
            every,
            ADMIN,
            r.create_channel,
            "open a channel",
            request_model=r.ChannelCreate,
            response_model=shown,
        ),
        _get(
            every,
            READ,
            r.list_all("channel"),
            "list the channels",
            query_model=PageQuery,
            response_model=listed,
        ),
        _get(one, READ, r.get("channel"), "show a channel", response_model=shown),
        _patch_named(
            one,
            ADMIN,
            r.update_channel,
            "change a channel",
            request_model=r.ChannelUpdate,
            response_model=shown,
        ),
        _delete_named(one, ADMIN, r.delete("channel"), "close a channel"),
        _post(
            "/channels/{id}/test",
            ADMIN,
            channels.check_channel,
            "ask its platform",
            response_model=channels.ChannelCheckResponse,
        ),
        _post("/channels/{id}/inbound", PlatformAccess(), channels.receive, posted, raw=True, hidden=True),
    )


def _pairings() -> tuple[ApiRoute, ...]:
    p, every = pairings, f"{ME}/channels/{{id}}/pairings"
    listed, also = ListPage[pairings.PairingResponse], {429: "too many wrong codes"}
    return (
        _post(
            every,
            ADMIN,
            p.pair,
            "let in who has this code",
            request_model=p.PairingCode,
            response_model=p.PairingResponse,
            error_responses=also,
        ),
        _get(
            every,
            READ,
            p.list_pairings,
            "who is let in, who waits",
            query_model=p.PairingQuery,
            response_model=listed,
        ),
        _delete(f"{every}/{{person}}", ADMIN, p.unpair, "let somebody in no more"),
    )


def _webhooks() -> tuple[ApiRoute, ...]:
    w, every, one = webhooks, f"{ME}/webhooks", f"{ME}/webhooks/{{id}}"
    shown, told, listed = (
        w.WebhookEndpointResponse,
        w.WebhookWithSecret,
        ListPage[webhooks.WebhookEndpointResponse],
    )
    return (
        _post_new(
            every,
            ADMIN,
            w.create_webhook,
            "make one; secret told once",
            request_model=w.WebhookCreate,
            response_model=told,
        ),
        _get(every, READ, w.list_webhooks, "list the webhooks", query_model=PageQuery, response_model=listed),
        _get(one, READ, w.get_webhook, "show a webhook", response_model=shown),
        _patch_named(
            one,
            ADMIN,
            w.update_webhook,
            "change a webhook",
            request_model=w.WebhookUpdate,
            response_model=shown,
        ),
        _delete(one, ADMIN, w.delete_webhook, "delete a webhook"),
        _post("/webhooks/{id}/rotate", ADMIN, w.rotate_webhook, "give it a new secret", response_model=told),
    )


def _turns() -> tuple[ApiRoute, ...]:
    t, taken = turns, turns.TurnAccepted
    gone = {409: "the conversation belongs to another agent", 429: "too much is waiting there"}
    accept = partial(
        _post, status=202, response_model=taken, error_responses=gone, body_bytes=attachments.MAX_BODY_BYTES
    )
    step, stat = ListPage[turns.StepResponse], t.TurnStatus
    either: Any = t.TurnOrJobStatus
    return (
        accept("/agents/{id}/turns", CHAT, t.start_turn, "ask an agent", request_model=t.TurnCreate),
        accept(
            "/conversations/{id}/messages",
            CHAT,
            t.send_message,
            "say something",
            request_model=t.MessageCreate,
        ),
        _get("/status/{id}", READ, t.get_status, "how a turn or a job stands", response_model=either),
        _post("/turns/{id}/cancel", CHAT, t.cancel_turn, "cancel a turn", status=202, response_model=stat),
        _get("/turns/{id}/log", READ, t.get_log, "a turn's tool calls", response_model=step),
    )


def _conversations() -> tuple[ApiRoute, ...]:
    c, a, one = conversations, approvals, "/conversations/{id}"
    many, asked = ListPage[conversations.ConversationResponse], ListPage[approvals.ApprovalResponse]
    winner = {409: "somebody decided otherwise first; `winner` is what stands"}
    decided = partial(
        _post, request_model=a.ApprovalDecision, response_model=a.ApprovalResponse, error_responses=winner
    )
    paged, talk = c.ConversationQuery, c.ConversationResponse
    return (
        _get(
            "/conversations", READ, c.list_conversations, "list them", query_model=paged, response_model=many
        ),
        _get(one, READ, c.get_conversation, "show a conversation", response_model=talk),
        _patch(
            one,
            CHAT,
            c.update_conversation,
            "its queue",
            request_model=c.ConversationUpdate,
            response_model=talk,
        ),
        _delete(one, ADMIN, c.delete_conversation, "delete a conversation: rows, events, files and jobs"),
        _get(
            f"{one}/snapshot",
            READ,
            c.get_snapshot,
            "what stands in it now",
            response_model=c.ConversationSnapshot,
        ),
        _get(
            "/approvals",
            READ,
            a.list_approvals,
            "list approvals",
            query_model=a.ApprovalQuery,
            response_model=asked,
        ),
        _get("/approvals/{id}", READ, a.get_approval, "show an approval", response_model=a.ApprovalResponse),
        decided("/approvals/{id}", CHAT, a.decide, "approve or deny a tool call"),
    )


def _jobs() -> tuple[ApiRoute, ...]:
    j, one, listed = jobs, "/jobs/{id}", ListPage[jobs.JobResponse]
    return (
        _get("/jobs", READ, j.list_jobs, "list the jobs", query_model=j.JobQuery, response_model=listed),
        _get(one, READ, j.get_job, "show a job", response_model=j.JobDetail),
        _get(f"{one}/logs", READ, j.get_log, "what it has written", response_model=j.JobLog),
        _post(f"{one}/stop", JOBS, j.stop_job, "stop a job", status=202, response_model=j.JobDetail),
    )


def _deliveries() -> tuple[ApiRoute, ...]:
    d, r, one, hook = deliveries, webhook_replay, "/deliveries/{id}", "/webhooks/{id}"
    listed, detail = ListPage[deliveries.DeliveryResponse], d.DeliveryDetail
    again = partial(_post, status=202, error_responses={409: "the webhook is disabled"})
    return (
        _get(
            "/deliveries",
            READ,
            d.list_deliveries,
            "list them",
            query_model=d.DeliveryQuery,
            response_model=listed,
        ),
        _get(one, READ, d.get_delivery, "one with its attempts", response_model=detail),
        _post(f"{one}/retry", ADMIN, d.retry_delivery, "send it again", status=202, response_model=detail),
        _post(f"{one}/drop", ADMIN, d.drop_delivery, "give it up", response_model=detail),
        again(
            f"{hook}/test",
            ADMIN,
            r.send_test_event,
            "send a test event",
            response_model=r.WebhookTestResponse,
        ),
        again(
            f"{hook}/replay",
            ADMIN,
            r.replay_webhook,
            "send again",
            request_model=r.WebhookReplayCreate,
            response_model=r.WebhookReplayResponse,
        ),
    )


def _public() -> tuple[ApiRoute, ...]:
    files = f"/{{file:{'|'.join(re.escape(name) for name in console.FILES)}|}}"
    unready = {503: "not ready"}
    return (
        _get(
            "/healthz",
            PUBLIC,
            health.liveness,
            "is the process alive",
            response_model=health.LivenessResponse,
        ),
        _get(
            "/readyz",
            PUBLIC,
            health.readiness,
            "does it receive",
            query_model=health.ReadinessQuery,
            response_model=health.ReadinessResponse,
            error_responses=unready,
        ),
        _get("/metrics", PUBLIC, health.metrics, "counters for Prometheus", media_type="text/plain"),
        _get(
            "/openapi.json",
            PUBLIC,
            openapi.handler_for(lambda: ROUTES),
            "this document",
            media_type="application/json",
        ),
        _get(
            files,
            PUBLIC,
            console_page.serve,
            "the console",
            media_type="text/html",
            hidden=True,
            tag="console",
        ),
    )


ROUTES: tuple[ApiRoute, ...] = (
    *_accounts(),
    *_record_routes("agent", "agents", records.AgentResponse),
    *_record_routes("workspace", "workspaces", records.RecordResponse),
    *_record_routes("sandbox", "sandboxes", records.RecordResponse),
    *_record_routes("skill", "skills", records.RecordResponse),
    *agent_files.ROUTES,
    *workspace_files.ROUTES,
    *_channels(),
    *_pairings(),
    *_webhooks(),
    *_turns(),
    *turn_list.ROUTES,
    *_conversations(),
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
    *_public(),
)
