"""The command `pagoda`: finds the subcommand, which is a module of backend/commands with `add_arguments` and `run`.

Those modules import what is heavy only when they run, so that `pagoda --help` answers at once.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

# In the order of the help text. The first one is meant when no command is named.
COMMANDS = ("serve", "ask", "inspect", "convert", "synth", "bench", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, COMMANDS[0])
    chosen = _parser().parse_args(arguments)
    try:
        return chosen.run(chosen)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda",
        description="Talk to language models that are larger than this computer's memory.",
        epilog="Without a command, pagoda starts the page: pagoda [serve] [options]. See pagoda COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"pagoda {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"backend.commands.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _version() -> str:
    try:
        return version("pagoda")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
