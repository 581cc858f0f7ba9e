"""What the gateway adds to each chunk: many streams at the pace of a reader, from a source that costs nothing.

python -m bench.gateway [--streams 200] [--rate 20] [--seconds 10]

The source writes the time into each token; a client in another process reads it at its socket. Two ways are measured:
an API request (nothing is kept) and a conversation (each chunk is in SQLite before anyone sees it). What was made
before the client had its stream is replayed to it, and counted apart. The clients come one after the other, over
`--ramp` seconds.
"""

import argparse
import asyncio
import gc
import json
import os
import re
import resource
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backend.abort import AbortSignal
from backend.app import Pagoda
from backend.sources import ModelStatus, SourceEvent
from engine.events import Finished, Generate, Token

_STAMP = re.compile(rb"<(\d+)>")


class Paced:
    """A source whose tokens carry the time at which they were made."""

    name = lane = "paced"
    elsewhere = False

    def __init__(self, streams: int, rate: float, seconds: float) -> None:
        self.capacity = streams
        self._count, self._pause = int(rate * seconds), 1 / rate

    def status(self) -> ModelStatus:
        return ModelStatus(self.name, "ready")

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def retry(self) -> None:
        pass

    def restart(self) -> None:
        pass

    async def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        loop = asyncio.get_running_loop()
        # All streams at the same instant is not how readers come: each has a phase of its own.
        due = loop.time() + (hash(request.run_id) % 1000) / 1000 * self._pause
        for number in range(self._count):
            due += self._pause
            await asyncio.sleep(max(due - loop.time(), 0))
            if abort.aborted:
                break
            yield Token(request.run_id, number, f"<{time.monotonic_ns()}> ")
        yield Finished(request.run_id, "stop", "", 1, self._count, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def serve(port: int, streams: int, rate: float, seconds: float) -> None:
    """The process that is measured; it prints its CPU seconds and peak memory when it is told to."""
    import uvicorn

    with tempfile.TemporaryDirectory() as folder:
        pagoda = Pagoda(Path(folder), [Paced(streams, rate, seconds)])

        async def app(scope, receive, send) -> None:
            if scope.get("path") == "/used":
                used = resource.getrusage(resource.RUSAGE_SELF)
                scale = 1 if sys.platform == "darwin" else 1024
                now = _resident() or used.ru_maxrss * scale
                body = json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * scale, now]).encode()
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": body})
                return
            await pagoda.asgi(scope, receive, send)

        gc.freeze()  # as `pagoda serve` does
        uvicorn.run(app, port=port, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@asynccontextmanager
async def request(port: int, method: str, path: str, body: object = None) -> AsyncIterator[asyncio.StreamReader]:
    """A bare HTTP/1.1 request, so that the client costs little; the reader stands after the headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    try:
        await reader.readuntil(b"\r\n\r\n")
        yield reader
    finally:
        writer.close()


async def answer(port: int, method: str, path: str, body: object = None) -> dict:
    async with request(port, method, path, body) as reader:
        text = await reader.read()
    return json.loads(re.search(rb"[\[{].*[\]}]", text, re.DOTALL)[0])  # type: ignore[index]


async def read(reader: asyncio.StreamReader, late: list[float | None]) -> None:
    """Adds how late each chunk came in ms, or None for one that is older than this stream."""
    opened = time.monotonic_ns()
    while data := await reader.read(65536):
        now = time.monotonic_ns()
        made = (int(stamp) for stamp in _STAMP.findall(data))
        late += [(now - stamp) / 1e6 if stamp > opened else None for stamp in made]


async def by_api(port: int, late: list[float | None]) -> None:
    body = {"model": "paced", "messages": [{"role": "user", "content": "Go"}], "stream": True}
    async with request(port, "POST", "/v1/chat/completions", body) as reader:
        await read(reader, late)


async def by_conversation(port: int, late: list[float | None]) -> None:
    id = (await answer(port, "POST", "/api/conversations", {}))["id"]
    sent = await answer(port, "POST", f"/api/conversations/{id}/messages", {"request_id": id, "text": "Go"})
    async with request(port, "GET", f"/api/conversations/{id}/chunks?attempt={sent['attempt_id']}") as reader:
        await read(reader, late)


async def later(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(seconds)
    await work


async def measure(args: argparse.Namespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    numbers = [str(value) for value in (args.streams, args.rate, args.seconds)]
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.gateway", "--serve", str(port), *numbers)
    try:
        while True:
            try:
                await answer(port, "GET", "/used")
                break
            except OSError:
                await asyncio.sleep(0.1)
        print(f"{args.streams} streams at {args.rate:g} chunks/s for {args.seconds:g} s, {os.cpu_count()} cores")
        columns = ("chunks", "replayed", "p50 ms", "p99 ms", "max ms", "CPU", "µs/chunk", "MB before", "MB after")
        print(" " * 14 + "".join(f"{column:>10}" for column in columns))
        for name, way in (("API", by_api), ("conversation", by_conversation)):
            for round in range(args.rounds):
                found: list[float | None] = []
                cpu, _, before = await answer(port, "GET", "/used")
                began = time.monotonic()
                pauses = (args.ramp * n / args.streams for n in range(args.streams))
                await asyncio.gather(*(later(pause, way(port, found)) for pause in pauses))
                took = time.monotonic() - began
                cpu_after, _, after = await answer(port, "GET", "/used")
                late = sorted(ms for ms in found if ms is not None)
                p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
                label = name if args.rounds == 1 else f"{name} {round + 1}"
                used = cpu_after - cpu
                print(
                    f"{label:14}{len(found):10}{len(found) - len(late):10}{p50:10.2f}{p99:10.2f}{late[-1]:10.2f}"
                    f"{used / took:10.0%}{used / len(found) * 1e6:10.0f}{before / 1e6:10.0f}{after / 1e6:10.0f}",
                    flush=True,
                )
    finally:
        server.terminate()
        await server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--ramp", type=float, default=2, help="seconds until the last client has come")
    parser.add_argument("--rounds", type=int, default=1, help="the same again, to see whether memory stays flat")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        port, streams, rate, seconds = args.serve
        serve(int(port), int(streams), float(rate), float(seconds))
    else:
        asyncio.run(measure(args))


if __name__ == "__main__":
    main()
