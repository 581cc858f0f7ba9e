"""Conversations as downloads, and back: export and import over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from backend.export import as_json, as_markdown, file_name
from backend.gateway import Gateway

log = logging.getLogger(__name__)

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
            content: Iterable[str] = as_json(_all_readable(gateway.whole, ids))
        else:
            read = _all_readable(gateway.conversation, ids)
            content = (("\n---\n\n" if n else "") + as_markdown(one) for n, one in enumerate(read))
        return _download(content, f"pagoda.{format}", format)

    @api.post("/api/import")
    async def import_(request: Request) -> dict[str, int]:
        return await gateway.import_conversations(await request.body())

    return api


def _all_readable(read: Callable[[str], dict[str, Any]], ids: list[str]) -> Iterator[dict[str, Any]]:
    """Out of a damaged database comes all that is whole; what is not is named in the log."""
    for id in ids:
        try:
            one = read(id)
        except Exception as error:  # whatever the damage makes of it
            log.error("conversation %s is damaged and was left out of the export: %s", id, error)
            continue
        yield one


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
