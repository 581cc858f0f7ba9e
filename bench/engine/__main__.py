"""Compares engines on one checkpoint in one run: mlx-lm, the best MLX pagers, llama.cpp, and Pagoda at several budgets.

Prints a table and, with --json, writes the figures. Rounds are interleaved and the median of each engine is shown, so
that a noisy machine treats all alike. The first run makes environments and checkpoints, which takes a while.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from platformdirs import user_cache_dir

from bench.engine import confined
from bench.engine.checkpoints import SHAPES, checkpoint
from bench.engine.engines import RUNNERS, Engine, free, limited
from bench.engine.environments import python_of
from engine import inspection

FIGURES = ("ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s", "peak_rss_bytes", "read_bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-moe")
    parser.add_argument("--model", type=Path, help="another checkpoint: mlx-lm and Pagoda alone")
    parser.add_argument("--limit", action="store_true", help="inside a memory limit of half the checkpoint, files cold")
    parser.add_argument("--limit-mb", type=int, help="another memory limit, in MB")
    parser.add_argument("--only", default="", help="engines whose names contain one of these, separated by commas")
    parser.add_argument("--prompt-tokens", type=int, default=26)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(user_cache_dir("pagoda-bench", appauthor=False)))
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()

    folder = args.model or checkpoint(args.shape, args.cache)
    sizes = inspection.inspect(folder)
    is_limited = args.limit or args.limit_mb is not None
    limit = args.limit_mb * 10**6 if args.limit_mb else sum(f.stat().st_size for f in folder.glob("*.safetensors")) // 2
    wanted = [word.strip() for word in args.only.split(",") if word.strip()]
    engines = [
        engine
        for engine in (limited() if is_limited else free())
        if (not wanted or any(word in engine.name for word in wanted))
        and (not args.model or engine.environment == "own")
    ]
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompt = np.random.default_rng(0).integers(vocabulary // 10, vocabulary // 2, args.prompt_tokens).tolist()

    results: dict[str, list[dict]] = {engine.name: [] for engine in engines}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.rounds):
            for engine in engines:
                print(f"round {number + 1}/{args.rounds}: {engine.name} ...", file=sys.stderr)
                file = args.model or engine.files(args.shape, args.cache)
                job = {
                    "model": str(file),
                    "prompt": prompt,
                    "tokens": args.tokens,
                    "warm": not is_limited,
                    **engine.more,
                }
                job["memory_bytes"] = _memory(engine, sizes.expert_bytes, limit if is_limited else None)
                results[engine.name].append(_run(engine, job, Path(scratch), args.cache, limit if is_limited else None))
    shown = {name: _median(runs) for name, runs in results.items()}
    _print(shown, limit if is_limited else None, sizes.expert_bytes)
    if args.json:
        heading = {
            "shape": args.shape,
            "expert_bytes": sizes.expert_bytes,
            "limit_bytes": limit if is_limited else None,
        }
        args.json.write_text(json.dumps({**heading, "prompt_tokens": len(prompt), "engines": shown}, indent=1))


def _memory(engine: Engine, expert_bytes: int, limit: int | None) -> int | None:
    if engine.experts_share is not None:
        return int(engine.experts_share * expert_bytes) + engine.fixed_bytes
    return int(engine.limit_share * limit) if engine.limit_share and limit else None


def _run(engine: Engine, job: dict, scratch: Path, cache: Path, limit: int | None) -> dict:
    file = scratch / "job.json"
    file.write_text(json.dumps(job))
    command = [python_of(engine.environment, cache), str(RUNNERS / f"{engine.script}.py"), str(file)]
    if engine.packs and not list((cache / "models").glob(f"{Path(job['model']).name}.{engine.script[5:]}*")):
        confined.run(command)  # makes its own copy of the checkpoint, then ends
    if limit is not None:
        confined.forget([cache / "models"])
    return confined.run(command, limit)


def _median(runs: list[dict]) -> dict:
    """Median figures of the runs that worked; the first error if none did."""
    good = [run for run in runs if "error" not in run]
    if not good:
        return {"error": runs[0]["error"] if runs else "not run"}
    return {name: statistics.median(run[name] for run in good) for name in FIGURES} | {"tokens": good[0]["tokens"]}


def _print(results: dict[str, dict], limit: int | None, expert_bytes: int) -> None:
    where = f"inside {limit / 1e6:,.0f} MB, files cold" if limit else "files warm"
    print(f"{expert_bytes / 1e9:.2f} GB of experts, {where}")
    print(
        f"{'engine':22} {'decode tok/s':>12} {'prefill tok/s':>13} {'TTFT s':>7} {'peak GB':>8} {'read GB':>8}  tokens"
    )
    reference = next((r["tokens"] for n, r in results.items() if n.startswith("mlx-lm") and "tokens" in r), None)
    reference = reference or next(
        (r["tokens"] for n, r in results.items() if n.startswith("Pagoda") and "tokens" in r), []
    )
    for name, result in results.items():
        if "error" in result:
            print(f"{name:22} {result['error']}")
            continue
        same = sum(1 for _ in _common(result["tokens"], reference))
        print(
            f"{name:22} {result['decode_tokens_per_s']:>12.1f} {result['prefill_tokens_per_s']:>13.1f} "
            f"{result['ttft_s']:>7.2f} {result['peak_rss_bytes'] / 1e9:>8.2f} {result['read_bytes'] / 1e9:>8.2f}  "
            f"{same}/{len(result['tokens'])}"
        )


def _common(a: list[int], b: list[int]):
    """The tokens that both begin with."""
    for one, other in zip(a, b, strict=False):
        if one != other:
            return
        yield one


if __name__ == "__main__":
    main()
