"""What every runner shares: the greedy loop with its clocks, and the line of JSON at the end."""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path


def arguments() -> tuple[str, list[int], int, int | None, bool]:
    """(model, prompt's ids, tokens to write, bytes of memory or None, whether a warm-up comes first)."""
    job = json.loads(Path(sys.argv[1]).read_text())
    return job["model"], job["prompt"], job["tokens"], job["memory_bytes"], job["warm"]


def report(read: Callable[[list[int]], int], write: Callable[[int], int], prompt: list[int], tokens: int) -> None:
    """Print {ttft_s, prefill_tokens_per_s, decode_tokens_per_s, peak_rss_bytes, read_bytes, tokens}.

    `read` takes the prompt and gives the first token, `write` takes a token and gives the next.
    """
    before, started = _read_bytes(), time.perf_counter()
    made = [read(prompt)]
    first = time.perf_counter()
    while len(made) < tokens:
        made.append(write(made[-1]))
    last = time.perf_counter()
    scale = 1 if sys.platform == "darwin" else 1024
    print(
        json.dumps(
            {
                "ttft_s": first - started,
                "prefill_tokens_per_s": len(prompt) / (first - started),
                "decode_tokens_per_s": (tokens - 1) / (last - first),
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
                "read_bytes": _read_bytes() - before,
                "tokens": made,
            }
        )
    )


def _read_bytes() -> int:
    """Bytes this process has read from disk so far; 0 where the system doesn't tell."""
    counts = Path("/proc/self/io")
    if not counts.exists():
        return 0
    return int(dict(line.split(": ") for line in counts.read_text().splitlines())["read_bytes"])
