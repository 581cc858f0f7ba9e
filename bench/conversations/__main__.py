"""What conversations that are written together gain where the disk is the limit: `pagoda bench` for 1, 2, 4 and 8.

Each run is a process of its own in cgroups that hold its memory to what it needs, so that the page cache can't stand in
for the disk, and, where --disk-mb is given, the disk to so many MB/s. The speed that is printed is the one measured.

What to expect: unrelated conversations choose unrelated experts. On the traces of this shape at a quarter of the
experts, a token of one conversation misses 3.7 experts a layer, of four 3.2, and even an oracle (Belady) 2.4 and 2.5:
where bandwidth alone is the limit, there is nothing more to be shared. What is gained beyond that comes from deeper
queues and from computing for one while reading for another. Held to 150 MB/s on a busy machine (2026-12-01): 2.7 to 3.1
tokens/s alone, then 3.2, 3.7 and 4.9 for 2, 4 and 8 together; 67, 63, 57 and 47 MB read a token.
"""

import argparse
import statistics
import sys
from pathlib import Path

from bench.engine import confined
from engine import inspection

FIGURES = ("decode_tokens_per_s", "bytes_read_per_token", "expert_hit_rate", "disk_bytes_per_s")
# Beside trunk and slots: the interpreter, kernels, states. Less than the GiB that the engine takes for memory to spare.
WORKING_BYTES = 850_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="as `pagoda synth OUT --like olmoe` makes it")
    parser.add_argument("--experts", type=float, default=0.25, help="share of the experts in memory (default: 0.25)")
    parser.add_argument("--disk-mb", type=int, help="hold the disk to so many MB/s, as a cgroup can")
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=24, help="of each conversation")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    sizes = inspection.inspect(args.model)
    memory = sizes.trunk_bytes + int(args.experts * sizes.expert_bytes) + WORKING_BYTES
    results: dict[int, list[dict]] = {count: [] for count in args.conversations}
    for _ in range(args.rounds):
        for count, found in results.items():
            confined.forget([args.model])
            found.append(_run(args, count, memory))
    print(f"{'conversations':>13} {'tok/s':>7} {'gain':>6} {'MB read a token':>16} {'hits':>5} {'disk MB/s':>10}")
    first = None
    for count, found in results.items():
        good = [one for one in found if "error" not in one]
        if not good:
            print(f"{count:>13} {found[0]['error']}")
            continue
        speed, read, hits, disk = (statistics.median(one[name] for one in good) for name in FIGURES)
        first = first or speed
        print(f"{count:>13} {speed:>7.2f} {speed / first:>5.2f}x {read / 1e6:>16.1f} {hits:>5.0%} {disk / 1e6:>10.0f}")


def _run(args: argparse.Namespace, count: int, memory: int) -> dict:
    code = "import sys; from backend.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "bench", "--json", "--model", str(args.model), "--batch", str(count)]
    command += ["--experts", f"{args.experts:.0%}", "--tokens", str(args.tokens)]
    command += ["--prompt-tokens", str(args.prompt_tokens)]
    print(f"{count} conversations ...", file=sys.stderr)
    limit = args.disk_mb * 10**6 if args.disk_mb else None
    return confined.run(command, memory, disk=(args.model, limit) if limit else None)


if __name__ == "__main__":
    main()
