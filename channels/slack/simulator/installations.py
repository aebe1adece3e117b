"""The workspaces of the simulated Slack that have the app, and OAuth: codes, tokens and refresh tokens."""

from __future__ import annotations

import base64
import binascii
import itertools

from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import APP, BOT_USER, Raw

CLIENT_ID = "1234.5678"
CLIENT_SECRET = "simulated-client-secret"  # noqa: S105 - valid at the simulator only
ENTERPRISE_PREFIX = "E"


class Installations:
    """Which bot token belongs to which workspace (T…) or organisation (E…)."""

    def __init__(self, token: str, team: str) -> None:
        self.teams = {token: team}
        self.expires_in: int | None = None
        """Seconds that new tokens live, if the app rotates tokens."""

        self.bot_users: dict[str, str] = {}
        """The user ids of bots in workspaces whose bot is another than the simulator's usual one."""

        self.rotations = 0
        self._codes: dict[str, str] = {}
        self._refresh_tokens: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def approve(self, team: str) -> str:
        """Approve the app in a workspace as its admin; return the code of the redirect."""
        code = f"code-{next(self._numbers)}"
        self._codes[code] = team
        return code

    def revoke(self, team: str) -> None:
        """Revoke the tokens of a workspace."""
        self.teams = {token: owner for token, owner in self.teams.items() if owner != team}

    def uninstall(self, given: Raw, token: str) -> Raw:
        """Carry out apps.uninstall: revoke the tokens of the workspace that the token belongs to."""
        if _credentials("", given) != (CLIENT_ID, CLIENT_SECRET):
            raise ApiFailure("bad_client_secret")
        self.revoke(self.teams[token])
        return {}

    def revoke_refresh_tokens(self, team: str) -> None:
        """Let no refresh token of a workspace be exchanged any more."""
        tokens = self._refresh_tokens.items()
        self._refresh_tokens = {token: owner for token, owner in tokens if owner != team}

    def access(self, given: Raw, authorization: str) -> Raw:
        """Carry out oauth.v2.access: exchange a code or a refresh token, each of which is valid once."""
        if _credentials(authorization, given) != (CLIENT_ID, CLIENT_SECRET):
            raise ApiFailure("bad_client_secret")
        if given.get("grant_type") == "refresh_token":
            team = self._refresh_tokens.pop(str(given.get("refresh_token")), "")
            self.rotations += bool(team)
        else:
            team = self._codes.pop(str(given.get("code")), "")
        if not team:
            raise ApiFailure("invalid_refresh_token" if given.get("grant_type") else "invalid_code")
        return self._grant(team)

    def _grant(self, team: str) -> Raw:
        number = next(self._numbers)
        token = f"xoxb-{team}-{number}"
        self.teams[token] = team
        is_organisation = team.startswith(ENTERPRISE_PREFIX)
        owner = {"id": team, "name": team}
        rotating: Raw = {}
        if self.expires_in is not None:
            rotating = {"refresh_token": f"xoxe-{team}-{number}", "expires_in": self.expires_in}
            self._refresh_tokens[rotating["refresh_token"]] = team
        return {
            "access_token": token,
            "token_type": "bot",
            "scope": "chat:write",
            "app_id": APP,
            "bot_user_id": self.bot_users.get(team, BOT_USER),
            "is_enterprise_install": is_organisation,
            "team": None if is_organisation else owner,
            "enterprise": owner if is_organisation else None,
            "authed_user": {"id": "U0ADA"},
            **rotating,
        }


def _credentials(authorization: str, given: Raw) -> tuple[str, str]:
    """Return client id and secret, from HTTP Basic or the form."""
    if not authorization.startswith("Basic "):
        return str(given.get("client_id")), str(given.get("client_secret"))
    try:
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return client, secret
