"""Puts the parts together: journal, engine, gateway, routes, guard. Nothing starts before the server does."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

from backend import anthropic_api, files_api, http_api, models_api, openai_api, responses_api
from backend.bodies import Bodies
from backend.choosing import Choosing
from backend.config import Settings
from backend.gateway import Gateway
from backend.guard import Guard
from backend.journal import Journal
from backend.sources import Source
from backend.upstream import Upstream
from engine.client import EngineClient

InstallPage = Callable[[FastAPI, Gateway], None]


class Pagoda:
    """One running Pagoda on one data folder.

    `asgi` is what a server serves: guard and body limits around the app with its routes and, through `install_page`,
    the page. Opening it takes hold of the data folder; `end_replies` may come before the server's own end, so that
    open streams see it coming.
    """

    def __init__(
        self,
        data_dir: Path,
        sources: Sequence[Source],
        engine: EngineClient | None = None,
        host: str = "127.0.0.1",
        token: str | None = None,
        install_page: InstallPage | None = None,
        upstreams: Sequence[Upstream] = (),
        model: str = "default",
    ) -> None:
        self.engine = engine
        self.upstreams = upstreams
        self.journal = Journal(data_dir)
        self.gateway = Gateway(self.journal, sources, upstreams)
        named = engine.memory_bytes if engine is not None else None
        self.choosing = Choosing(self.gateway, data_dir, engine, model, named)
        self.app = FastAPI(title="Pagoda", docs_url=None, redoc_url=None, openapi_url=None, lifespan=self._lifespan)
        http_api.install_errors(self.app)
        self.app.include_router(http_api.routes(self.gateway))
        for api in (files_api, openai_api, anthropic_api, responses_api):
            self.app.include_router(api.routes(self.gateway))
        self.app.include_router(models_api.routes(self.choosing))
        self.app.include_router(http_api.unknown_paths())
        if install_page is not None:
            install_page(self.app, self.gateway)
        self.asgi: ASGIApp = Guard(Bodies(self.app), host, token)

    async def end_replies(self) -> None:
        """Mark what runs as interrupted and accept nothing new."""
        await self.gateway.close()

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.gateway.start()
        if self.engine is not None:
            await self.engine.start()
        for upstream in self.upstreams:
            await upstream.start()
        try:
            yield
        finally:
            await self.end_replies()
            await self.choosing.close()
            for upstream in self.upstreams:
                await upstream.close()
            if self.engine is not None:
                await self.engine.close()
            self.journal.close()


def build(settings: Settings, token: str | None = None) -> Pagoda:
    """Pagoda as these settings say: the engine as its source of replies, and the page.

    This is the one place that knows all three parts.
    """
    from backend.engine_source import EngineSource
    from ui import page

    upstreams = [Upstream(upstream) for upstream in settings.upstreams]
    name, _, model = settings.model.partition("/")
    source: Source
    engine = None
    if model and (elsewhere := next((one for one in upstreams if one.name == name), None)):
        source = elsewhere.source(model)  # nothing runs here then
    else:
        engine = EngineClient(settings.model, settings.data_dir, settings.memory_bytes, settings.draft)
        source = EngineSource(settings.model, engine)
    pagoda = Pagoda(settings.data_dir, [source], engine, settings.host, token, page.install, upstreams, settings.model)
    if engine is not None:
        pagoda.gateway.serve_models(pagoda.choosing.local_models, lambda name: EngineSource(name, engine))
    return pagoda
