"""Settings of files in both directions, of voices, and of the operator's skills."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gateway.config.setting_types import (
    MEGABYTE,
    WEEK_SECONDS,
    Directory,
    FrozenSettings,
    Seconds,
    SecretValue,
    WebUrl,
    split_list,
)


class FileSettings(FrozenSettings):
    """Limits of files in both directions, and their retention."""

    max_bytes: int = Field(
        default=50 * MEGABYTE, ge=1, le=500 * MEGABYTE, description="bytes of one file that is sent"
    )
    max_count: int = Field(default=20, ge=1, le=100, description="files sent with one answer or job")
    messages_before_file: int = Field(
        default=2, ge=0, le=100, description="messages of one reply; a longer text becomes a file; 0: never"
    )
    attachment_bytes: int = Field(
        default=20 * MEGABYTE, ge=1, le=500 * MEGABYTE, description="bytes of one file that is received"
    )
    attachment_timeout: float = Field(
        default=60.0, gt=0, le=600, description="seconds that fetching one received file may take"
    )
    link_lifetime: Seconds = Field(default=WEEK_SECONDS, description="seconds a link to a file is valid")
    retention: int = Field(
        default=30 * 86400, ge=1, le=3650 * 86400, description="seconds files are stored, at most"
    )
    turn_bytes: int = Field(
        default=16 * MEGABYTE,
        ge=0,
        le=500 * MEGABYTE,
        description="bytes of changed files that are stored with a turn's file tree; 0: turns have no tree",
    )
    account_bytes: int = Field(
        default=10_000 * MEGABYTE,
        ge=0,
        description="bytes of files, workspaces, messages and agents that one account may store; 0: no limit",
    )


class TranscriptionSettings(FrozenSettings):
    """What turns voice messages into text: an endpoint, else a command, else nothing."""

    base_url: WebUrl | None = Field(
        default=None, description="a server with OpenAI's /audio/transcriptions, such as .../v1"
    )
    api_key: SecretValue | None = Field(default=None, description="the server's key")
    model: str = Field(default="whisper-1", max_length=200, description="the server's model")
    command: Annotated[tuple[str, ...], BeforeValidator(split_list)] = Field(
        default=(), description="a command that reads a voice message and prints its text"
    )
    timeout: float = Field(default=120.0, gt=0, le=600, description="seconds that one message may take")
    max_bytes: int = Field(default=25 * MEGABYTE, ge=1, description="bytes of one message")


class SpeechSettings(FrozenSettings):
    """What turns answers in chats into voice files: an endpoint, else a command, else nothing."""

    base_url: WebUrl | None = Field(
        default=None, description="a server with OpenAI's /audio/speech, such as .../v1"
    )
    api_key: SecretValue | None = Field(default=None, description="the server's key")
    model: str = Field(default="tts-1", max_length=200, description="the server's model")
    voice: str = Field(default="alloy", max_length=200, description="the server's voice")
    format: Literal["mp3", "opus", "aac", "flac", "wav"] = Field(
        default="mp3", description="the format of voice files"
    )
    command: Annotated[tuple[str, ...], BeforeValidator(split_list)] = Field(
        default=(), description="a command that reads an answer and writes a voice file"
    )
    timeout: float = Field(default=60.0, gt=0, le=600, description="seconds that one answer may take")
    max_bytes: int = Field(default=10 * MEGABYTE, ge=1, description="bytes of one voice file")
    max_characters: int = Field(
        default=2000, ge=1, le=100_000, description="characters of an answer that are spoken"
    )

    @property
    def is_enabled(self) -> bool:
        """Whether answers are spoken."""
        return bool(self.base_url or self.command)


class SkillSettings(FrozenSettings):
    """Skills that come from a directory of the operator."""

    directory: Directory | None = Field(
        default=None, description="each folder in it with a SKILL.md is a skill of the default account"
    )
