"""The pull requests of GitHub's REST API on loopback, for the repositories of a git server.

Written from GitHub's documentation: "REST API endpoints for pull requests" (create a pull request),
"Authenticating to the REST API" and "Troubleshooting the REST API".
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from git_server import GitServer

WEB = "https://github.example"
"""The address that pull requests have for people."""


@dataclass(kw_only=True)
class PullRequestApi:
    """Creates pull requests between branches that the git server really has; `token` is the only login."""

    server: GitServer
    token: str
    login: str = "dovecote-bot"
    pulls: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer `POST /repos/OWNER/REPOSITORY/pulls`."""
        if not request.headers.get("User-Agent"):
            return _refuse(403, "Request forbidden by administrative rules.")
        if not self._accepts(request.headers.get("Authorization", "")):
            return _refuse(401, "Bad credentials")
        match request.path.split("/"):
            case ["", "repos", owner, repository, "pulls"] if self._has(owner, repository):
                return await self._create(request, f"{owner}/{repository}")
        return _refuse(404, "Not Found")

    def _accepts(self, authorization: str) -> bool:
        kind, _, given = authorization.partition(" ")
        return kind.lower() in ("bearer", "token") and hmac.compare_digest(given, self.token)

    def _has(self, owner: str, repository: str) -> bool:
        return (self.server.root / owner / f"{repository}.git").is_dir()

    async def _create(self, request: web.BaseRequest, name: str) -> web.Response:
        try:
            given = json.loads(await request.read())
        except ValueError:
            return _refuse(400, "Problems parsing JSON")
        problem = self._problem(name, given)
        if problem is not None:
            return _refuse(422, "Validation Failed", {"resource": "PullRequest", **problem})
        number, commits = len(self.pulls) + 1, self.server.commits(f"{name}.git", given["head"])
        made = {
            "number": number,
            "state": "open",
            "title": given["title"],
            "body": given.get("body"),
            "user": {"login": self.login},
            "head": {
                "ref": given["head"],
                "sha": commits[0],
            },
            "base": {"ref": given["base"]},
            "html_url": f"{WEB}/{name}/pull/{number}",
        }
        self.pulls.append(made)
        return web.json_response(made, status=201)

    def _problem(self, name: str, given: Any) -> dict[str, str] | None:
        """Return what GitHub says of a request that cannot become a pull request."""
        if not isinstance(given, dict):
            return {"field": "title", "code": "missing_field"}
        for key in ("title", "head", "base"):
            if not isinstance(given.get(key), str):
                return {"field": key, "code": "missing_field"}
        head, base = (self.server.commits(f"{name}.git", given[key]) for key in ("head", "base"))
        if not head or not base:
            return {"field": "base" if head else "head", "code": "invalid"}
        if head[0] in base:
            words = f"No commits between {given['base']} and {given['head']}"
            return {"code": "custom", "message": words}
        if any(one["head"]["ref"] == given["head"] for one in self.pulls):
            return {"code": "custom", "message": f"A pull request already exists for {given['head']}."}
        return None


def _refuse(status: int, message: str, *errors: dict[str, str]) -> web.Response:
    body: dict[str, Any] = {"message": message, "status": str(status)}
    return web.json_response(body | ({"errors": list(errors)} if errors else {}), status=status)
