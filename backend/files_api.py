"""Conversations as downloads, and back: export and import over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Literal
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from backend.export import as_json, as_markdown, file_name
from backend.gateway import Gateway

Format = Literal["md", "json"]
_TYPES = {"md": "text/markdown; charset=utf-8", "json": "application/json"}


def routes(gateway: Gateway) -> APIRouter:
    """/api/conversations/{id}/export, /api/export and /api/import."""
    api = APIRouter()

    @api.get("/api/conversations/{id}/export")
    async def export(id: str, format: Format = "md") -> StreamingResponse:
        conversation = gateway.conversation(id)
        content = [as_markdown(conversation)] if format == "md" else as_json([gateway.whole(id)])
        return _download(content, file_name(conversation["title"], format), format)

    @api.get("/api/export")
    async def export_all(format: Format = "json") -> StreamingResponse:
        ids = [row["id"] for row in gateway.conversations()]
        if format == "json":
            content: Iterable[str] = as_json(gateway.whole(id) for id in ids)
        else:
            content = (("\n---\n\n" if n else "") + as_markdown(gateway.conversation(id)) for n, id in enumerate(ids))
        return _download(content, f"pagoda.{format}", format)

    @api.post("/api/import")
    async def import_(request: Request) -> dict[str, int]:
        return await gateway.import_conversations(await request.body())

    return api


def _download(content: Iterable[str], name: str, format: Format) -> StreamingResponse:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in content:
            yield piece.encode("utf-8", "replace")
            await asyncio.sleep(0)  # a long history, piece by piece, holds up nobody

    return StreamingResponse(
        pieces(),
        media_type=_TYPES[format],
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}", "Cache-Control": "no-store"},
    )
