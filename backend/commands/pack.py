"""`pagoda pack`: writes a copy of a model in which each expert lies in one piece, after saying what that gains here."""

import argparse
import sys
from pathlib import Path

HELP = "copy a model so that each expert is one read of the disk"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH|HF_ID", help="the model")
    parser.add_argument("out", type=Path, help="the new folder; a copy that was interrupted goes on there")
    parser.add_argument("--dry-run", action="store_true", help="only say what it would gain here")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 when it can't be packed."""
    from backend.commands.terminal import ProgressLine, bar
    from engine.errors import EngineError
    from engine.loader import open_model, resolve
    from engine.packing import gain, pack

    line = ProgressLine(sys.stderr)
    try:
        source = resolve(args.model)
        opened = open_model(source)
        if opened.experts:
            now, packed = gain(opened)
            size = (opened.trunk_bytes + opened.expert_bytes) / 1e9
            print(
                f"Experts are read here at {now / 1e9:.2f} GB/s now, and at {packed / 1e9:.2f} GB/s if each lies in "
                f"one piece ({packed / now - 1:+.0%}). The copy takes {size:,.1f} GB at most.",
                file=sys.stderr,
            )
        if args.dry_run:
            return 0
        folder = pack(
            source,
            args.out.expanduser(),
            progress=lambda done, total: line.show("pack", f"Writing {args.out.name}", bar(done, total)),
        )
    except EngineError as error:
        line.clear()
        print(error, file=sys.stderr)
        return 1
    line.clear()
    print(folder)
    return 0
