"""A git server for tests: git's own `http-backend`, behind aiohttp, with a password if one is given."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

_BACKEND = Path("/usr/lib/git-core/git-http-backend")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "HOME": "/nonexistent",
    "PATH": os.defpath,
}


def is_git_server_possible() -> bool:
    """Return whether git's http-backend is installed."""
    return _BACKEND.exists()


@dataclass(kw_only=True)
class GitServer:
    """Serves the bare repositories below `root`; `authorization` is the header that each request needs."""

    root: Path
    authorization: str = ""
    seen: list[str] = field(default_factory=list)
    """The Authorization header of each request."""

    def require_basic(self, username: str, password: str) -> None:
        """Require a user name and a password from now on."""
        token = base64.b64encode(f"{username}:{password}".encode()).decode()
        self.authorization = f"Basic {token}"

    def create(self, name: str, content: bytes) -> None:
        """Create a repository with one file that accepts pushes."""
        self.create_tree(name, {"file": content})

    def create_tree(self, name: str, files: Mapping[str, bytes]) -> None:
        """Create a repository with these files that accepts pushes."""
        bare, work = self.root / name, self.root / f"{name}.work"
        self._git("init", "--quiet", "--bare", "--initial-branch=main", str(bare))
        self._git("-C", str(bare), "config", "http.receivepack", "true")
        self._git("init", "--quiet", "--initial-branch=main", str(work))
        for path, content in files.items():
            (work / path).write_bytes(content)
        self._git("-C", str(work), "add", "--all")
        self._git("-C", str(work), "commit", "--quiet", "-m", "First")
        self._git("-C", str(work), "push", "--quiet", str(bare), "main")

    def authors(self, name: str, branch: str) -> list[str]:
        """Return the authors of a branch's commits, newest first."""
        found = self._git("-C", str(self.root / name), "log", "--format=%an", f"refs/heads/{branch}")
        return found.decode().splitlines()

    def commits(self, name: str, branch: str) -> list[str]:
        """Return the ids of a branch's commits, newest first; none without the branch."""
        words = ["git", "-C", str(self.root / name), "rev-list", f"refs/heads/{branch}", "--"]
        found = subprocess.run(words, capture_output=True, check=False, env=_ENVIRONMENT)
        return found.stdout.decode().splitlines()

    def show(self, name: str, branch: str, path: str) -> bytes:
        """Return a file of a branch."""
        return self._git("-C", str(self.root / name), "show", f"refs/heads/{branch}:{path}")

    def log(self, name: str) -> list[str]:
        """Return the subjects of a repository's commits, newest first."""
        found = self._git("-C", str(self.root / name), "log", "--format=%s", "main")
        return found.decode().splitlines()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request by the CGI program."""
        self.seen.append(request.headers.get("Authorization", ""))
        if self.authorization and self.seen[-1] != self.authorization:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        body = await request.content.read()
        headers = {f"HTTP_{name.upper().replace('-', '_')}": text for name, text in request.headers.items()}
        process = await asyncio.create_subprocess_exec(
            str(_BACKEND),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                **_ENVIRONMENT,
                **headers,
                "CONTENT_LENGTH": str(len(body)),
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROJECT_ROOT": str(self.root),
                "PATH_INFO": request.path,
                "QUERY_STRING": request.query_string,
                "REMOTE_USER": "ada",
                "REQUEST_METHOD": request.method,
            },
        )
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(fields.pop("Status", "200 OK").split()[0])
        return web.Response(status=status, headers=fields, body=content)

    @staticmethod
    def _git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], capture_output=True, check=True, env=_ENVIRONMENT).stdout
