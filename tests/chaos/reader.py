"""One who listens to a reply over server-sent events, in a thread, and remembers every chunk that arrived."""

import json
import threading

import httpx


class Reader:
    """`chunks` are the JSON objects in the order they came; `ended` once the stream broke or came to its end."""

    def __init__(self, url: str, conversation: str, attempt: str) -> None:
        self.conversation, self.attempt = conversation, attempt
        self.chunks: list[dict] = []
        self._moved = threading.Condition()
        self.ended = False
        self._address = f"{url}/api/conversations/{conversation}/chunks?attempt={attempt}"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with httpx.stream("GET", self._address, timeout=60) as response:
                for line in response.iter_lines():
                    if line.startswith("data: ") and "seq" in (chunk := json.loads(line[6:])):
                        with self._moved:
                            self.chunks.append(chunk)
                            self._moved.notify_all()
        except httpx.TransportError:
            pass  # the other end was killed: that is what these tests do
        with self._moved:
            self.ended = True
            self._moved.notify_all()

    def wait_for(self, count: int) -> None:
        """Until so many chunks came, or no more will."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.ended or len(self.chunks) >= count, 60), "no chunk came"

    def finish(self) -> None:
        """Until the stream is over."""
        self._thread.join(90)
        assert not self._thread.is_alive(), "a stream stayed open"

    def text(self) -> str:
        """What the reply said to this reader."""
        return "".join(chunk["data"]["text"] for chunk in self.chunks if chunk["kind"] == "text")
