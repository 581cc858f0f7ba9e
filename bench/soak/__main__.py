"""A large history: 100 conversations of 1,000 messages, and how long the list, a search and a conversation take.

Run `python -m bench.soak [CONVERSATIONS] [MESSAGES]`; prints one JSON object, times in milliseconds (median of nine).
"""

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from backend.app import Pagoda
from tests.backend.scripted import ScriptedSource

WORDS = [
    "lantern", "harbour", "keeper", "storm", "letter", "window", "bread", "river", "garden", "winter", "copper",
    "music", "stone", "bridge", "morning",
]  # fmt: skip


def history(conversations: int, messages: int) -> bytes:
    """An export of so many."""
    made = []
    for c in range(conversations):
        rows, parent = [], None
        for m in range(messages):
            row = {
                "id": f"m_{c}_{m}", "role": "assistant" if m % 2 else "user", "parent": parent, "chosen": True,
                "created_at": float(m), "text": " ".join(WORDS[(c * 7 + m * 3 + k * k) % 15] for k in range(30)),
            }  # fmt: skip
            if m % 2:
                text = row.pop("text")
                row["attempts"] = [{"id": f"a_{c}_{m}", "number": 0, "model": "default", "state": "complete",
                                    "reason": "stop", "text": text, "created_at": float(m)}]  # fmt: skip
                row["selected_attempt"] = f"a_{c}_{m}"
            rows.append(row)
            parent = row["id"]
        made.append({
            "id": f"c_{c}", "title": f"Conversation {c}", "model": "default", "system": None, "sampling": {},
            "pinned": False, "archived": False, "created_at": float(c), "updated_at": float(c), "messages": rows,
        })  # fmt: skip
    return json.dumps({"format": "pagoda-conversations", "version": 1, "conversations": made}).encode()


async def main(conversations: int, messages: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pagoda = Pagoda(Path(folder), [ScriptedSource()])
        async with pagoda.app.router.lifespan_context(pagoda.app):
            transport = httpx.ASGITransport(pagoda.asgi)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=600) as client:
                began = time.perf_counter()
                json_type = {"Content-Type": "application/json"}
                answer = await client.post("/api/import", content=history(conversations, messages), headers=json_type)
                answer.raise_for_status()
                found: dict[str, object] = {
                    "imported": answer.json(),
                    "import_s": round(time.perf_counter() - began, 1),
                }
                some = (await client.get("/api/conversations")).json()[0]["id"]
                for name, path in (
                    ("list_ms", "/api/conversations"),
                    ("search_ms", "/api/search?q=lantern harbour"),
                    ("search_short_ms", "/api/search?q=no"),
                    ("conversation_ms", f"/api/conversations/{some}"),
                ):
                    times = []
                    for _ in range(9):
                        began = time.perf_counter()
                        (await client.get(path)).raise_for_status()
                        times.append(1000 * (time.perf_counter() - began))
                    found[name] = round(statistics.median(times), 1)
        found["database_mb"] = round((Path(folder) / "pagoda.db").stat().st_size / 1e6, 1)
        found["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sizes = [int(value) for value in sys.argv[1:]]
    asyncio.run(main(*(sizes + [100, 1000][len(sizes) :])))
