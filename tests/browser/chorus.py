"""Another server that answers many questions at once, word by word, and only when all of them have been asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_S = 120


def part_of(voice: str, words: int) -> list[str]:
    """What a voice says: every word names it and its place, so that a word in another reply is seen, or one missing."""
    return [f"{voice}.{n} " for n in range(words)]


class Chorus:
    """`url` is a base URL. Each of `voices` requests gets the first half of its part when all have come, and the
    second half when the test calls `go_on`. A voice is the last word of the question."""

    def __init__(self, voices: int, words: int) -> None:
        self._together = threading.Barrier(voices)
        self._second_half = threading.Event()
        chorus = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say("application/json", json.dumps({"object": "list", "data": [{"id": "one"}]}).encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                voice = asked["messages"][-1]["content"].split()[-1]
                part = part_of(voice, words)
                self._say("text/event-stream")
                for half in (part[: words // 2], part[words // 2 :]):
                    chorus._together.wait(PATIENCE_S)
                    for word in half:
                        self._event({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
                    assert chorus._second_half.wait(PATIENCE_S)
                self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                self.wfile.write(b"data: [DONE]\n\n")

            def _say(self, kind: str, body: bytes = b"") -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body)

            def _event(self, data: dict) -> None:
                self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
                self.wfile.flush()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def go_on(self) -> None:
        """Let all say their second half."""
        self._second_half.set()

    @contextmanager
    def singing(self) -> Iterator["Chorus"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._together.abort()
            self._second_half.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()
