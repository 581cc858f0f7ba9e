"""`pagoda convert`: writes a checkpoint once in the layout that its experts can be paged from."""

import argparse
import sys
from pathlib import Path

HELP = "rewrite a model whose experts can't be read from its files as they are"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH|HF_ID", help="the model as it was published")
    parser.add_argument("out", type=Path, help="the new folder; a conversion that was interrupted goes on there")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 when it can't be converted."""
    from backend.commands.terminal import ProgressLine, bar
    from engine.convert import convert
    from engine.errors import EngineError
    from engine.loader import resolve

    line = ProgressLine(sys.stderr)
    try:
        folder = convert(
            resolve(args.model),
            args.out.expanduser(),
            progress=lambda done, total: line.show("convert", f"Writing {args.out.name} {bar(done, total)}"),
        )
    except EngineError as error:
        line.clear()
        print(error, file=sys.stderr)
        return 1
    line.clear()
    print(folder)
    return 0
