"""Answers of MCP servers: images that a model sees or that are named, and refusals with their status."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Image
from mcp.types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, TextContent

from delivery.database.engine import Database
from gateway.tools.mcp.results import to_tool_result
from mcp_agents import Agents
from mcp_services import mcp_service
from migrated import migrated_sqlite
from turn_worker import open_turn_worker

PNG = b"\x89PNG\r\n\x1a\n...."
GIF = b"GIF89a...."


def image(content: bytes) -> ImageContent:
    """Return a block with an image, as servers send it."""
    return ImageContent(type="image", data=base64.b64encode(content).decode(), mime_type="image/png")


def resource(content: bytes) -> EmbeddedResource:
    """Return a block with a resource that is an image."""
    blob = base64.b64encode(content).decode()
    inside = BlobResourceContents(uri="shots://1", mime_type="image/gif", blob=blob)
    return EmbeddedResource(type="resource", resource=inside)


def sent(*blocks: Any) -> dict[str, Any]:
    """Return a result as it arrives."""
    return {"content": [block.model_dump(mode="json", by_alias=True) for block in blocks]}


def test_images_of_a_result_are_shown() -> None:
    """Each is named in the text at its place, by the tool and a number."""
    words = TextContent(type="text", text="two shots:")
    result = to_tool_result(sent(words, image(PNG), resource(GIF)), tool="shots_take", limit=1000)
    assert result.content == (
        "two shots:\n[image shots_take 1, image/png, follows]\n[image shots_take 2, image/gif, follows]"
    )
    assert [(one.name, one.media_type, one.content) for one in result.images] == [
        ("shots_take 1", "image/png", PNG),
        ("shots_take 2", "image/gif", GIF),
    ]


async def test_the_image_of_a_server_reaches_the_agent(tmp_path: Path) -> None:
    """The result of the call has it once; the recorded result of a repeated call has its name alone."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    harness = await open_turn_worker(database, tmp_path)
    agents = Agents(harness)
    async with mcp_service() as service:

        @service.server.tool(structured_output=False)
        def draw() -> Image:
            """Draw."""
            return Image(data=PNG, format="png")

        await agents.configure(shots={"url": service.url})
        turn = await harness.add_turn(running=True)
        async with agents.tools(turn) as tools:
            drawn = await tools.call("shots_draw", {}, call="call-1")
        async with agents.tools(replace(turn, attempt=2)) as tools:
            again = await tools.call("shots_draw", {}, call="call-1")
    await database.close()
    assert [one.content for one in drawn.images] == [PNG]
    assert (again.content, again.images) == (drawn.content, ())


@pytest.mark.parametrize(
    "block",
    [
        image(b"no image"),
        image(PNG + bytes(5_000_000)),
        ImageContent(type="image", data="?", mime_type="image/png"),
        AudioContent(type="audio", data=base64.b64encode(b"RIFF0000WAVE").decode(), mime_type="audio/wav"),
    ],
)
def test_what_a_model_does_not_accept_is_named(block: Any) -> None:
    """Bytes that are no image, too many bytes, and audio."""
    result = to_tool_result(sent(block), tool="shots_take", limit=1000)
    assert (result.images, result.content.endswith(", not shown]")) == ((), True)


async def test_a_refused_handshake_is_named_with_its_status(tmp_path: Path) -> None:
    """An address that takes no streamable HTTP is often that of a server of the older transport."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    agents = Agents(await open_turn_worker(database, tmp_path))
    async with mcp_service() as service:
        await agents.configure(old={"url": service.url.replace("/mcp", "/sse")})
        async with agents.tools():
            (note,) = agents.notes
    await database.close()
    assert "status 404: the address may be wrong, or of the older transport HTTP+SSE" in note
