"""A day of talk in minutes: replies one after the other and beside each other, readers that come, leave and resume.

`python -m tests.backend.long_day FOLDER` serves Pagoda with a source that costs nothing, and tells its memory at
/memory; `talk_for_an_hour` is what people and programs do with it.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from backend.abort import AbortSignal
from backend.app import Pagoda
from backend.sources import ModelStatus, SourceEvent
from engine.events import Finished, Generate, Progress, Token
from ui import page

ROOT = Path(__file__).parents[2]
TOKENS = 300  # of a reply
AT_ONCE = 8
# An hour at ten tokens a second is 36,000 of them: so many turns in so many conversations, and so many of programs.
CONVERSATIONS, TURNS, PROGRAMS = 12, 8, 24
KEPT = 2  # conversations of an hour; the others are deleted


class Fast:
    """Replies of 300 tokens, with the progress that an engine tells, as fast as anybody takes them."""

    name = lane = "default"
    elsewhere = False
    capacity = AT_ONCE

    def status(self) -> ModelStatus:
        return ModelStatus(self.name, "ready")

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def retry(self) -> None:
        pass

    def restart(self) -> None:
        pass

    def warm(self, messages: tuple[dict, ...]) -> None:
        pass

    async def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        id = request.run_id
        for done in range(TOKENS):
            if abort.aborted:
                break
            yield Progress(id, "decode", done, TOKENS, 15, 30, 100 * done, 10 * done, 1_000_000 * done)
            yield Token(id, 1000 + done, f"word{done} " if done % 20 else f"\n\nword{done} ")
            await asyncio.sleep(0)
        reason = "aborted" if abort.aborted else "stop"
        yield Finished(id, reason, "", 20, TOKENS, 0.1, 0.1, 1.0, 0.01, 0.01, 0.0, 0, 0, 0)


# --- the process that is measured ----------------------------------------------------------------


async def serve(folder: Path) -> None:
    pagoda = Pagoda(folder, [Fast()], install_page=page.install)

    async def app(scope, receive, send) -> None:
        if scope.get("path") == "/memory":
            gc.collect()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(memory()).encode()})
        else:
            await pagoda.asgi(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="on"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started it closes it, or is gone
    server.should_exit = True
    await serving


def memory() -> dict[str, int]:
    """What is in memory now: bytes, Python's objects, open files."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"resident": resident, "objects": len(gc.get_objects()), "files": len(os.listdir("/proc/self/fd"))}


# --- the people ----------------------------------------------------------------------------------


class Day:
    """Pagoda in a process of its own, and who talks with it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.chunks = 0
        self._requests = 0

    async def memory(self) -> dict[str, int]:
        return (await self._client.get("/memory")).json()

    async def talk_for_an_hour(self, share: float = 1.0) -> None:
        """What happens in an hour, or in that share of one."""
        seats = asyncio.Semaphore(AT_ONCE)

        async def seated(work) -> Any:
            async with seats:
                return await work

        people = [self._person(n) for n in range(max(1, round(CONVERSATIONS * share)))]
        programs = [self._program(n) for n in range(max(1, round(PROGRAMS * share)))]
        found = await asyncio.gather(*map(seated, people + programs))
        for conversation in [id for id in found if id is not None][KEPT:]:
            await self._client.delete(f"/api/conversations/{conversation}")

    async def _person(self, number: int) -> str:
        """A conversation of eight turns, watched as a whole and reply by reply."""
        id = (await self._ask("POST", "/api/conversations", {}))["id"]
        watching = asyncio.create_task(self._watch(id))
        for turn in range(TURNS):
            self._requests += 1
            body = {"request_id": f"r{self._requests}", "text": f"Question {turn} of {number}"}
            sent = await self._ask("POST", f"/api/conversations/{id}/messages", body)
            leaves = TOKENS // 2 if turn % 3 == 1 else None
            last = await self._read(id, sent["attempt_id"], -1, leaves)
            if turn == 2:
                await self._ask("POST", f"/api/attempts/{sent['attempt_id']}/stop", {})
            await self._read(id, sent["attempt_id"], last, None)
            if turn == 4:
                again = await self._ask("POST", f"/api/messages/{sent['message_id']}/regenerate", {})
                await self._read(id, again["attempt_id"], -1, None)
        await self._ask("GET", f"/api/conversations/{id}")
        await self._ask("GET", "/api/conversations")
        await self._ask("GET", "/api/search?q=word7")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return id

    async def _program(self, number: int) -> None:
        """An API client; every fourth leaves in mid-reply."""
        body = {"model": "default", "messages": [{"role": "user", "content": f"Go {number}"}], "stream": True}
        seen = 0
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                seen += line.startswith("data: ")
                if number % 4 == 3 and seen > TOKENS // 2:
                    break
        self.chunks += seen

    async def _watch(self, id: str) -> None:
        async with self._client.stream("GET", f"/api/conversations/{id}/chunks") as answer:
            async for _ in answer.aiter_raw():
                pass

    async def _read(self, id: str, attempt: str, after: int, leaves: int | None) -> int:
        """The seq of the last chunk that came; the stream goes on from `after`, and is left after so many."""
        count, last = 0, after
        path = f"/api/conversations/{id}/chunks?attempt={attempt}&after={after}"
        async with self._client.stream("GET", path) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    seq = int(line.rpartition(":")[2])
                    assert seq == last + 1, "a gap"
                    last, count = seq, count + 1
                    if count == leaves:
                        break
        self.chunks += count
        return last

    async def _ask(self, method: str, path: str, body: dict | None = None) -> Any:
        answer = await self._client.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()


@asynccontextmanager
async def a_day(folder: Path) -> AsyncIterator[Day]:
    """Its process ends with it."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.backend.long_day", str(folder))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120, limits=limits) as client:
            yield Day(client)
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
