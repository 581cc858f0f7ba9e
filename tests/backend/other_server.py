"""A real HTTP server that answers with the bytes a test says, cut wherever it says, and notes what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Answer:
    """`pieces` are sent one by one. `hold` leaves the connection open after them, `cut` breaks it in mid-body."""

    pieces: Sequence[bytes]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    hold: bool = False
    cut: bool = False


class OtherServer:
    """`answers` are given in turn, the last one again and again; `asked` has (path, headers, body) of each request."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.models = ["small", "org/large"]
        self.owner = "other"
        self.asked: list[tuple[str, dict[str, str], dict]] = []
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        self.url = ""

    def completions(self) -> list[dict]:
        return [body for path, _, body in self.asked if path.endswith("/chat/completions")]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            path = head[0].split(" ")[1]
            self.asked.append((path, headers, json.loads(body) if body else {}))
            if path.endswith("/models"):
                rows = [{"id": id, "object": "model", "owned_by": self.owner} for id in self.models]
                answer = Answer(
                    [json.dumps({"object": "list", "data": rows}).encode()], content_type="application/json"
                )
            else:
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            more = "".join(f"{key}: {value}\r\n" for key, value in answer.headers.items())
            writer.write(
                f"HTTP/1.1 {answer.status} Said\r\nContent-Type: {answer.content_type}\r\n"
                f"Transfer-Encoding: chunked\r\nConnection: close\r\n{more}\r\n".encode()
            )
            for piece in answer.pieces:
                if piece:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                    await asyncio.sleep(0)
            if not path.endswith("/models"):
                self.arrived.set()
            if answer.hold:
                await reader.read()
                self.left.set()
            elif not answer.cut:
                writer.write(b"0\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def other_server() -> AsyncIterator[OtherServer]:
    other = OtherServer()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    other.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield other
    finally:
        server.close()


def sse(*objects: object, end: str = "\n\n") -> bytes:
    """Each object as an event; strings as they are."""
    lines = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in objects)
    return "".join(f"data: {line}{end}" for line in lines).encode()


def delta(content: str | None = None, finish: str | None = None, **fields) -> dict:
    said = {**({"content": content} if content is not None else {}), **fields}
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}
