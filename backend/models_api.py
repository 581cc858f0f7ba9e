"""Choosing a model over HTTP: what there is, what it needs, folders to look in, downloads from the hub, memory."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from backend.choosing import Choosing

Name = Annotated[str, Query(min_length=1, max_length=4096)]


class Named(BaseModel):
    """A model of the hub."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(min_length=1, max_length=300)


class Folder(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    path: str = Field(min_length=1, max_length=4096)


class Budget(BaseModel):
    """None: as much as this machine can spare."""

    model_config = ConfigDict(extra="forbid", strict=True)
    memory_bytes: int | None = Field(ge=1, le=2**60)


def routes(choosing: Choosing) -> APIRouter:
    """/api/forecast, /api/folders, /api/downloads and /api/memory."""
    api = APIRouter()

    @api.get("/api/forecast")
    async def forecast(model: Name) -> dict[str, Any]:
        return {"model": model, **await choosing.forecast(model)}

    @api.get("/api/folders")
    async def folders() -> dict[str, Any]:
        return {"folders": choosing.folders()}

    @api.post("/api/folders")
    async def add_folder(body: Folder) -> dict[str, Any]:
        return {"found": await choosing.add_folder(body.path), "folders": choosing.folders()}

    @api.delete("/api/folders")
    async def drop_folder(path: Name) -> dict[str, Any]:
        choosing.drop_folder(path)
        return {"folders": choosing.folders()}

    @api.get("/api/downloads")
    async def downloads() -> dict[str, Any]:
        return {"downloads": choosing.downloads()}

    @api.post("/api/downloads")
    async def start(body: Named) -> dict[str, Any]:
        return {"name": choosing.download(body.name), "downloads": choosing.downloads()}

    @api.post("/api/downloads/pause")
    async def pause(body: Named) -> dict[str, Any]:
        await choosing.pause_download(body.name)
        return {"downloads": choosing.downloads()}

    @api.post("/api/downloads/cancel")
    async def cancel(body: Named) -> dict[str, Any]:
        await choosing.cancel_download(body.name)
        return {"downloads": choosing.downloads()}

    @api.get("/api/memory")
    async def memory() -> dict[str, Any]:
        return choosing.memory()

    @api.put("/api/memory")
    async def set_memory(body: Budget) -> dict[str, Any]:
        return choosing.set_memory(body.memory_bytes)

    return api
