"""Pagoda with the real page and a scripted source in place of a model, told on stdin what the source says next.

Run as `python -m tests.browser.stage DATA PORT`; each line is a JSON list: a method and its arguments.
"""

import asyncio
import json
import re
import socket
import sys
from pathlib import Path

import uvicorn

from backend.app import Pagoda
from backend.sources import ModelStatus
from engine.events import Loading, Progress
from tests.backend.scripted import Call, ScriptedSource
from ui import page


class Stage:
    """What a test may say. `call` is the run that began last."""

    def __init__(self, pagoda: Pagoda, source: ScriptedSource) -> None:
        self.pagoda, self.source = pagoda, source
        self.call: Call | None = None

    async def next(self) -> None:
        self.call = await self.source.next_call()

    async def also(self, name: str) -> None:
        """One more model, which never says anything."""
        self.pagoda.gateway._sources.add(ScriptedSource(name))

    async def progress(self, stage: str, done: int, total: int, layer: int, layers: int, hits: int, reads: int) -> None:
        assert self.call is not None
        await self.call.say(Progress(self.call.run_id, stage, done, total, layer, layers, hits, reads, 1000 * reads))

    async def loading(self, stage: str, done: int, total: int) -> None:
        """The model loads, and the run that waits for it hears of it."""
        step = Loading(stage, done, total, "bytes")
        self.source.become(ModelStatus(self.source.name, "loading", progress=step))
        if self.call is not None:
            await self.call.say(step)

    async def ready(self) -> None:
        self.source.become(ModelStatus(self.source.name, "ready"))

    async def stream(self, count: int, per_second: float, text: str) -> None:
        """`count` tokens, each a word of the text, over and over, at an even pace, then the end."""
        assert self.call is not None
        words = re.findall(r"\s*\S+", text)
        clock = asyncio.get_running_loop()
        began = clock.time()
        for index in range(count):
            await asyncio.sleep(max(0.0, began + index / per_second - clock.time()))
            self.call.hand(words[index % len(words)])
        await self.call.finish()

    async def harmony(self, text: str, size: int) -> None:
        """What gpt-oss writes, `size` characters a token, told as the engine tells it."""
        from engine.harmony_speech import HarmonySpeech  # it brings all of mlx-lm with it

        assert self.call is not None
        speech = HarmonySpeech(self.call.request, ())
        for start in range(0, len(text), size):
            await self.call.token(speech.add(text[start : start + size]).text)
        await self.call.finish(text=speech.finish("").text)

    async def do(self, name: str, *arguments: object) -> None:
        own = getattr(self, name, None)
        await (own or getattr(self.call, name))(*arguments)


async def main(folder: Path, port: int) -> None:
    source = ScriptedSource("default")
    pagoda = Pagoda(folder, [source], install_page=page.install)
    stage = Stage(pagoda, source)
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(pagoda.asgi, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await stage.do(*json.loads(line))
        print("done", flush=True)
    await pagoda.end_replies()
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
