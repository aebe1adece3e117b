"""The REST and GraphQL endpoints of a simulated GitHub, with their authentication and refusals."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NoReturn

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from channels.github.simulator import graphql
from channels.github.simulator.events import WebhookDelivery
from channels.github.simulator.world import APP_ID, BOT, INSTALLATION, MAX_BODY, SLUG, Entry, World

PAGE = 100
EVENTS = [
    *("issues", "issue_comment", "pull_request", "pull_request_review", "pull_request_review_comment"),
    *("discussion", "discussion_comment", "repository"),
]
_REPO = "/repos/{owner}/{repo}"


@cache
def private_key(name: str) -> str:
    """Return an RSA key in PEM form; the same name gives the same key within a process."""
    del name
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
    return key.private_bytes(*form, serialization.NoEncryption()).decode()


@cache
def _public_key(pem: str) -> Any:
    """Return the public half of a private key, read once: reading checks the key, which takes 35 ms."""
    return serialization.load_pem_private_key(pem.encode(), None).public_key()


class GitHubRefusal(Exception):
    """GitHub answers with a status, a message and perhaps headers."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def _refuse(status: int, message: str, **headers: str) -> NoReturn:
    raise GitHubRefusal(status, message, **headers)


class GitHubApi:
    """The endpoints."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.key = private_key("app")
        self.tokens: set[str] = set()
        self.deliveries: list[WebhookDelivery] = []
        self.lost: set[int] = set()
        """Ids of deliveries that the log lists, and whose content is answered with 404."""
        self.hook = {"url": "", "content_type": "json", "secret": "", "insecure_ssl": "0"}
        self.events = list(EVENTS)
        self.remaining = 5000
        self.reset_at = int(time.time()) + 3600

    def routes(self) -> list[web.RouteDef]:
        """Return all endpoints."""
        about, pulls = f"{_REPO}/issues", f"{_REPO}/pulls"
        found = [
            web.get("/app", self._as_app(self._app)),
            web.get("/app/installations", self._as_app(self._installations)),
            web.post("/app/installations/{id}/access_tokens", self._as_app(self._make_token)),
            web.get("/app/hook/config", self._as_app(self._hook)),
            web.patch("/app/hook/config", self._as_app(self._set_hook)),
            web.get("/app/hook/deliveries", self._as_app(self._list_deliveries)),
            web.get("/app/hook/deliveries/{id}", self._as_app(self._get_delivery)),
            web.get(f"{_REPO}/installation", self._as_app(self._installation)),
            web.get(_REPO, self._in_repo(self._repository)),
            web.get(f"{about}/{{number}}/comments", self._in_repo(self._list_comments)),
            web.post(f"{about}/{{number}}/comments", self._in_repo(self._comment)),
            web.get(f"{pulls}/{{number}}/comments", self._in_repo(self._list_comments)),
            web.get(f"{pulls}/{{number}}/reviews/{{review}}/comments", self._in_repo(self._list_lines)),
            web.post(f"{pulls}/{{number}}/comments/{{root}}/replies", self._in_repo(self._reply)),
            web.post("/graphql", self._in_repo(self._graphql)),
        ]
        comments = (f"{about}/comments/{{id}}", f"{pulls}/comments/{{id}}")
        found += [web.patch(path, self._in_repo(self._edit)) for path in comments]
        for path in (f"{about}/{{number}}", *comments):
            found.append(web.get(f"{path}/reactions", self._in_repo(self._list_reactions)))
            found.append(web.post(f"{path}/reactions", self._in_repo(self._react)))
            found.append(web.delete(f"{path}/reactions/{{reaction}}", self._in_repo(self._unreact)))
        return found

    # Authentication

    def _as_app(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.Response:
            return await self._answer(request, handler, self._check_jwt)

        return answer

    def _in_repo(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.Response:
            return await self._answer(request, handler, self._check_token)

        return answer

    async def _answer(self, request: web.Request, handler: Any, check: Any) -> web.Response:
        limits = {"x-ratelimit-limit": "5000", "x-ratelimit-reset": str(self.reset_at)}
        try:
            check(request.headers.get("Authorization", "").partition(" ")[2])
            if self.remaining <= 0:
                _refuse(403, "API rate limit exceeded for installation ID 77001.")
            self.remaining -= 1
            status, body, headers = await handler(request)
        except GitHubRefusal as refusal:
            status, body, headers = refusal.status, {"message": str(refusal)}, refusal.headers
        headers = {**limits, "x-ratelimit-remaining": str(self.remaining), **headers}
        if status == 204:  # noqa: PLR2004
            return web.Response(status=204, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    def _check_jwt(self, token: str) -> None:
        try:
            claims = jwt.decode(
                token, _public_key(self.key), algorithms=["RS256"], options={"verify_aud": False}
            )
        except jwt.PyJWTError:
            raise GitHubRefusal(401, "A JSON web token could not be decoded") from None
        if str(claims.get("iss")) != str(APP_ID) or claims["exp"] - time.time() > 600:  # noqa: PLR2004
            raise GitHubRefusal(401, "'Expiration time' claim ('exp') is too far in the future")

    def _check_token(self, token: str) -> None:
        if token not in self.tokens:
            raise GitHubRefusal(401, "Bad credentials")

    # The app

    async def _app(self, _: web.Request) -> Any:
        return (
            200,
            {"id": APP_ID, "slug": SLUG, "permissions": self.world.permissions, "events": self.events},
            {},
        )

    async def _installations(self, _: web.Request) -> Any:
        suspended = {"suspended_at": "2026-01-01T00:00:00Z" if self.world.suspended else None}
        account = {"id": INSTALLATION, "account": {"login": "octo"}, "permissions": self.world.permissions}
        return 200, [{**account, **suspended}] if self.world.installed else [], {}

    async def _installation(self, request: web.Request) -> Any:
        self._check_room(request)
        if not self.world.installed:
            raise GitHubRefusal(404, "Not Found")
        return 200, {"id": INSTALLATION}, {}

    async def _make_token(self, request: web.Request) -> Any:
        if not self.world.installed or request.match_info["id"] != str(INSTALLATION):
            raise GitHubRefusal(404, "Not Found")
        if self.world.suspended:
            raise GitHubRefusal(403, "This installation has been suspended")
        token = f"ghs_{secrets.token_hex(18)}"
        self.tokens.add(token)
        expires = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 201, {"token": token, "expires_at": expires}, {}

    async def _hook(self, _: web.Request) -> Any:
        return 200, {**self.hook, "secret": "********"}, {}

    async def _set_hook(self, request: web.Request) -> Any:
        self.hook |= await request.json()
        return await self._hook(request)

    async def _list_deliveries(self, request: web.Request) -> Any:
        size, cursor = int(request.query.get("per_page", "30")), request.query.get("cursor")
        rows = [one for one in reversed(self.deliveries) if cursor is None or one.id < int(cursor)]
        more = (
            f'<{request.url.with_query(per_page=size, cursor=rows[size - 1].id)}>; rel="next"'
            if len(rows) > size
            else ""
        )
        return 200, [one.summary() for one in rows[:size]], {"Link": more} if more else {}

    async def _get_delivery(self, request: web.Request) -> Any:
        found = next((one for one in self.deliveries if str(one.id) == request.match_info["id"]), None)
        if found is None or found.id in self.lost:
            raise GitHubRefusal(404, "Not Found")
        return 200, found.detail(), {}

    # A repository

    def _check_room(self, request: web.Request) -> None:
        room = "{owner}/{repo}".format(**request.match_info)
        if room in self.world.former_rooms and self.world.installed:
            status = 301 if request.method == "GET" else 307
            raise GitHubRefusal(
                status, "Moved Permanently", Location=str(request.url).replace(room, self.world.room)
            )
        if not self.world.installed or room != self.world.room:
            raise GitHubRefusal(404, "Not Found")

    def _thread(self, request: web.Request) -> Entry:
        self._check_room(request)
        number = int(request.match_info["number"])
        thread = self.world.thread(number)
        if number in self.world.deleted:
            raise GitHubRefusal(410, "This issue was deleted")
        if thread is None or thread.kind == "discussion":
            raise GitHubRefusal(404, "Not Found")
        return thread

    def _entry(self, request: web.Request) -> Entry:
        self._check_room(request)
        if "number" in request.match_info:
            return self._thread(request)
        entry = self.world.entries.get(int(request.match_info["id"]))
        kind = "review_comment" if "/pulls/" in request.path else "issue_comment"
        if entry is None or entry.kind != kind:
            raise GitHubRefusal(404, "Not Found")
        return entry

    def _check_write(self, thread: Entry) -> None:
        name = "pull_requests" if thread.kind in {"pull_request", "review_comment"} else "issues"
        if self.world.permissions.get(name) != "write":
            header = {"X_Accepted_GitHub_Permissions": f"{name}=write"}
            raise GitHubRefusal(403, "Resource not accessible by integration", **header)
        if self.world.archived:
            raise GitHubRefusal(403, "Repository was archived so is read-only.")
        if thread.locked:
            raise GitHubRefusal(403, "Unable to create comment because issue is locked.")

    async def _body(self, request: web.Request) -> str:
        body = (await request.json()).get("body")
        if not isinstance(body, str) or not body.strip():
            raise GitHubRefusal(422, "Validation Failed")
        if len(body) > MAX_BODY:
            raise GitHubRefusal(
                422, f"Validation Failed: Body is too long (maximum is {MAX_BODY} characters)"
            )
        return body

    async def _repository(self, request: web.Request) -> Any:
        self._check_room(request)
        return 200, {"full_name": self.world.room}, {}

    async def _list_comments(self, request: web.Request) -> Any:
        thread, since = self._thread(request), request.query.get("since", "")
        kind = "review_comment" if "/pulls/" in request.path else "issue_comment"
        page, size = int(request.query.get("page", "1")), int(request.query.get("per_page", "30"))
        rows = [one.json() for one in self.world.comments(kind, thread.number) if one.updated_at >= since]
        more = f'<{request.url.update_query(page=page + 1)}>; rel="next"' if len(rows) > page * size else ""
        return 200, rows[(page - 1) * size : page * size], {"Link": more} if more else {}

    async def _list_lines(self, request: web.Request) -> Any:
        """Return the comments of a review in the older form, which has no lines."""
        thread, review = self._thread(request), int(request.match_info["review"])
        found = [one for one in self.world.comments("review_comment", thread.number) if one.review == review]
        hidden = {"line", "original_line", "side", "subject_type"}
        return 200, [{key: one.json()[key] for key in one.json().keys() - hidden} for one in found], {}

    async def _comment(self, request: web.Request) -> Any:
        thread = self._thread(request)
        self._check_write(thread)
        made = self.world.add("issue_comment", thread.number, await self._body(request), user=BOT)
        return 201, made.json(), {}

    async def _reply(self, request: web.Request) -> Any:
        thread, root = self._thread(request), int(request.match_info["root"])
        self._check_write(thread)
        if root not in self.world.entries:
            raise GitHubRefusal(404, "Not Found")
        body = await self._body(request)
        made = self.world.add("review_comment", thread.number, body, user=BOT, parent=root)
        return 201, made.json(), {}

    async def _edit(self, request: web.Request) -> Any:
        entry = self._entry(request)
        self._check_write(entry)
        entry.body = await self._body(request)
        return 200, entry.json(), {}

    async def _list_reactions(self, request: web.Request) -> Any:
        rows = self._entry(request).reactions.items()
        return 200, [{"id": key, "content": content, "user": user} for key, (content, user) in rows], {}

    async def _react(self, request: web.Request) -> Any:
        entry, content = self._entry(request), (await request.json())["content"]
        if content not in graphql.CONTENTS.values():
            raise GitHubRefusal(422, "Validation Failed")
        old = next((key for key, value in entry.reactions.items() if value == (content, BOT)), None)
        key = old or next(self.world.ids)
        entry.reactions[key] = (content, BOT)
        return 200 if old else 201, {"id": key, "content": content, "user": BOT}, {}

    async def _unreact(self, request: web.Request) -> Any:
        if self._entry(request).reactions.pop(int(request.match_info["reaction"]), None) is None:
            raise GitHubRefusal(404, "Not Found")
        return 204, None, {}

    async def _graphql(self, request: web.Request) -> Any:
        given = await request.json()
        try:
            data = graphql.run(self.world, given["query"], given.get("variables") or {})
        except graphql.GraphQLRefusal as refusal:
            error = {"type": refusal.kind, "message": str(refusal)}
            return 200, {"data": None, "errors": [error]}, {}
        return 200, {"data": data}, {}
