"""`pagoda synth`: a random-weight checkpoint in the shape of a known architecture, for benchmarks."""

import argparse
import sys
from pathlib import Path

HELP = "write a random-weight model in the shape of a known one, for benchmarks"
_NUMBERS = ("layers", "experts", "hidden", "expert-hidden", "vocab", "top-k", "group-size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="the new folder")
    parser.add_argument("--like", required=True, help="qwen3-moe, olmoe, mixtral, deepseek-v3 or gpt-oss")
    for name in _NUMBERS:
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--bits", type=int, default=4, metavar="N", help="2, 3, 4, 5, 6 or 8 (default: 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--skew", type=float, default=0.6, help="how unequal experts' popularity is (default: 0.6)")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 when it can't be written."""
    from backend.commands.terminal import ProgressLine, bar, size
    from engine.errors import EngineError
    from engine.synth import synthesise

    line = ProgressLine(sys.stderr)
    sizes = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name in _NUMBERS}
    try:
        folder = synthesise(
            args.out.expanduser(),
            args.like,
            **sizes,
            bits=args.bits,
            seed=args.seed,
            skew=args.skew,
            progress=lambda done, total: line.show("synth", f"Writing {args.out.name}", bar(done, total)),
        )
    except EngineError as error:
        line.clear()
        print(error, file=sys.stderr)
        return 1
    line.clear()
    total = sum(file.stat().st_size for file in folder.iterdir())
    print(f"Wrote {size(total)} of random weights to {folder}. Measure it: pagoda bench --model {folder}")
    return 0
