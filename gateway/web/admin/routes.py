"""The routes of the account's own records: keys, agents, sandboxes, channels, pairings and webhooks."""

from __future__ import annotations

from functools import partial

from gateway.store.accounts.records import RecordKind
from gateway.web.admin import (
    accounts,
    agent_files,
    audit,
    channels,
    credentials,
    installations,
    operator_accounts,
    pairings,
    records,
    sandboxes,
    storage,
    usage,
    webhook_replay,
    webhooks,
)
from gateway.web.http.auth import AdminAccess, PlatformAccess
from gateway.web.http.pagination import ListPage, PageQuery
from gateway.web.http.route import ApiRoute
from gateway.web.http.route_table import (
    ADMIN,
    ME,
    READ,
    delete_named_route,
    delete_route,
    get_route,
    patch_named_route,
    patch_route,
    post_new_route,
    post_route,
)


def _record_routes(
    kind: RecordKind,
    plural: str,
    create_model: type[records.RecordCreate],
    record_model: type[records.RecordResponse],
    response_model: type[records.RecordResponse] | None = None,
) -> tuple[ApiRoute, ...]:
    """Return the five routes of one kind of record; `response_model` is that of changes, if it differs."""
    record = f"an {kind}" if kind == "agent" else f"a {kind}"
    collection, one = f"{ME}/{plural}", f"{ME}/{plural}/{{id}}"
    page = ListPage[record_model]  # type: ignore[valid-type]
    update_model = records.UPDATES[kind]
    changed_model = response_model or record_model
    return (
        post_new_route(
            collection,
            ADMIN,
            records.create(kind),
            f"create {record}",
            request_model=create_model,
            response_model=changed_model,
        ),
        get_route(
            collection,
            READ,
            records.list_all(kind),
            f"list the {plural}",
            query_model=PageQuery,
            response_model=page,
        ),
        get_route(
            one, READ, records.get(kind), f"show {record}", response_model=record_model, versioned=True
        ),
        patch_named_route(
            one,
            ADMIN,
            records.update(kind),
            f"update {record}",
            request_model=update_model,
            response_model=changed_model,
            versioned=True,
        ),
        delete_named_route(one, ADMIN, records.delete(kind), f"delete {record}", versioned=True),
    )


def _accounts() -> tuple[ApiRoute, ...]:
    a, keys, key = accounts, f"{ME}/keys", f"{ME}/keys/{{id}}"
    return (
        post_new_route(
            "/accounts",
            AdminAccess(),
            a.create_account,
            "create an account",
            request_model=a.AccountCreate,
            response_model=a.AccountCreated,
        ),
        get_route(ME, READ, a.get_account, "show the key's account", response_model=a.AccountResponse),
        patch_route(
            ME,
            ADMIN,
            a.update_account,
            "change the account's time zone",
            request_model=a.AccountUpdate,
            response_model=a.AccountResponse,
        ),
        delete_route(ME, ADMIN, a.delete_account, "delete the key's account with all its data"),
        post_new_route(
            keys,
            ADMIN,
            a.create_key,
            "create a key; it is returned only here",
            request_model=a.KeyCreate,
            response_model=a.KeyCreated,
        ),
        get_route(
            keys,
            ADMIN,
            a.list_keys,
            "list the keys",
            query_model=PageQuery,
            response_model=ListPage[a.KeyResponse],
        ),
        get_route(key, ADMIN, a.get_key, "show a key", response_model=a.KeyResponse, versioned=True),
        patch_route(
            key,
            ADMIN,
            a.update_key,
            "rename a key or reduce its scopes",
            request_model=a.KeyUpdate,
            response_model=a.KeyResponse,
            versioned=True,
        ),
        delete_route(key, ADMIN, a.revoke_key, "revoke a key", versioned=True),
    )


def _channels() -> tuple[ApiRoute, ...]:
    r, collection, one = records, f"{ME}/channels", f"{ME}/channels/{{id}}"
    response, page = r.ChannelResponse, ListPage[records.ChannelResponse]
    inbound = "receive a platform's webhook; the adapter verifies it"
    return (
        post_new_route(
            collection,
            ADMIN,
            r.create_channel,
            "create a channel",
            request_model=r.ChannelCreate,
            response_model=response,
        ),
        get_route(
            collection,
            READ,
            r.list_all("channel"),
            "list the channels",
            query_model=PageQuery,
            response_model=page,
        ),
        get_route(one, READ, r.get("channel"), "show a channel", response_model=response, versioned=True),
        patch_named_route(
            one,
            ADMIN,
            r.update_channel,
            "update a channel",
            request_model=r.ChannelUpdate,
            response_model=response,
            versioned=True,
        ),
        delete_named_route(one, ADMIN, r.delete("channel"), "delete a channel", versioned=True),
        get_route(
            f"{one}/status",
            READ,
            channels.channel_status,
            "show whether a channel receives, in the process that answers",
            response_model=channels.ChannelStatusResponse,
        ),
        post_route(
            "/channels/{id}/test",
            ADMIN,
            channels.check_channel,
            "check a channel's settings with its platform",
            response_model=channels.ChannelCheckResponse,
        ),
        post_route(
            "/channels/{id}/inbound", PlatformAccess(), channels.receive, inbound, raw=True, hidden=True
        ),
    )


def _pairings() -> tuple[ApiRoute, ...]:
    p, collection = pairings, f"{ME}/channels/{{id}}/pairings"
    page, errors = ListPage[pairings.PairingResponse], {429: "too many wrong codes"}
    return (
        post_route(
            collection,
            ADMIN,
            p.pair,
            "approve the pairing with this code",
            request_model=p.PairingCode,
            response_model=p.PairingResponse,
            error_responses=errors,
        ),
        get_route(
            collection,
            READ,
            p.list_pairings,
            "list approved and pending pairings",
            query_model=p.PairingQuery,
            response_model=page,
        ),
        delete_route(f"{collection}/{{person}}", ADMIN, p.unpair, "revoke a pairing"),
    )


def _webhooks() -> tuple[ApiRoute, ...]:
    w, collection, one = webhooks, f"{ME}/webhooks", f"{ME}/webhooks/{{id}}"
    response, with_secret, page = (
        w.WebhookEndpointResponse,
        w.WebhookWithSecret,
        ListPage[webhooks.WebhookEndpointResponse],
    )
    return (
        post_new_route(
            collection,
            ADMIN,
            w.create_webhook,
            "create a webhook; its secret is returned only here",
            request_model=w.WebhookCreate,
            response_model=with_secret,
        ),
        get_route(
            collection, READ, w.list_webhooks, "list the webhooks", query_model=PageQuery, response_model=page
        ),
        get_route(one, READ, w.get_webhook, "show a webhook", response_model=response, versioned=True),
        patch_named_route(
            one,
            ADMIN,
            w.update_webhook,
            "update a webhook",
            request_model=w.WebhookUpdate,
            response_model=response,
            versioned=True,
        ),
        delete_route(one, ADMIN, w.delete_webhook, "delete a webhook", versioned=True),
        post_route(
            "/webhooks/{id}/rotate",
            ADMIN,
            w.rotate_webhook,
            "rotate a webhook's secret",
            request_model=w.WebhookRotate,
            optional_body=True,
            response_model=with_secret,
        ),
    )


def _webhook_events() -> tuple[ApiRoute, ...]:
    r, hook = webhook_replay, "/webhooks/{id}"
    again = partial(post_route, status=202, error_responses={409: "the webhook is disabled"})
    return (
        again(
            f"{hook}/test",
            ADMIN,
            r.send_test_event,
            "send a test event to a webhook",
            response_model=r.WebhookTestResponse,
        ),
        again(
            f"{hook}/replay",
            ADMIN,
            r.replay_webhook,
            "send past events to a webhook again",
            request_model=r.WebhookReplayCreate,
            response_model=r.WebhookReplayResponse,
        ),
    )


ADMIN_ROUTES: tuple[ApiRoute, ...] = (
    *_accounts(),
    *_record_routes(
        "agent", "agents", records.AgentCreate, records.AgentRecordResponse, records.AgentResponse
    ),
    *_record_routes("workspace", "workspaces", records.WorkspaceCreate, records.WorkspaceRecordResponse),
    *_record_routes(
        "sandbox",
        "sandboxes",
        records.SandboxCreate,
        records.SandboxRecordResponse,
        records.SandboxChangedResponse,
    ),
    *_record_routes("skill", "skills", records.SkillCreate, records.SkillRecordResponse),
    *agent_files.ROUTES,
    *credentials.ROUTES,
    *_channels(),
    *installations.ROUTES,
    *_pairings(),
    *_webhooks(),
    *_webhook_events(),
    *sandboxes.ROUTES,
    *storage.ROUTES,
    *usage.ROUTES,
    *operator_accounts.ROUTES,
    *audit.ROUTES,
)
