"""Eight hours of talk in minutes: does memory stay flat?

Run `python -m bench.soak.hours [HOURS]`. Each hour is 36,000 tokens in 120 replies (tests/backend/long_day.py); after
each, what is in memory. Exit status 1 when the last hours have more than the first ones after the warm-up.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.backend.long_day import a_day

WARM_UP = 4  # hours in which caches and the allocator's pools fill: measured 93, 105, 108, 113, 117, 117, 117 MB
MAY_GROW = 0.03  # of the resident memory after the warm-up, over all that follows


async def main(hours: int) -> int:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with a_day(Path(folder)) as day:
            print(f"{'hour':>4}{'chunks':>10}{'seconds':>9}{'MB':>8}{'objects':>10}{'files':>7}")
            for hour in range(hours + 1):
                began = time.monotonic()
                if hour:
                    await day.talk_for_an_hour()
                now = await day.memory()
                rows.append(now)
                took = time.monotonic() - began
                print(
                    f"{hour:4}{day.chunks:10,}{took:9.1f}{now['resident'] / 1e6:8.1f}{now['objects']:10,}"
                    f"{now['files']:7}",
                    flush=True,
                )
    first = statistics.median(row["resident"] for row in rows[WARM_UP : WARM_UP + 2])
    last = statistics.median(row["resident"] for row in rows[-2:])
    print(f"after {WARM_UP} hours of warm-up: {first / 1e6:.1f} MB, at the end {last / 1e6:.1f} MB")
    return int(last > first * (1 + MAY_GROW))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)))
