"""nunspark: one file an expert, LRU and a pinned core under a byte budget. The first run packs its own copy."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from measured import arguments, report
from nunspark.engine import StreamingEngine
from nunspark.generate import stream_generate
from nunspark.manifest import Manifest

folder, prompt, tokens, memory_bytes, warm = arguments()
store = Path(f"{folder}.nunspark")
if not (store / "manifest.json").exists():
    subprocess.run([Path(sys.executable).parent / "nunspark", "pack", folder, store], check=True, stdout=sys.stderr)
    sys.exit("packed; run again")
engine = StreamingEngine(str(store), Manifest.load(str(store / "manifest.json")), budget_bytes=memory_bytes)
if warm:
    next(stream_generate(engine, prompt[:4], max_tokens=1))
running: Iterator[int]


def read(ids: list[int]) -> int:
    global running
    running = iter(stream_generate(engine, ids, max_tokens=tokens))
    return next(running)


report(read, lambda _: next(running), prompt, tokens)
engine.close()
