"""The command `pagoda`: finds the subcommand, which is a module of backend/commands with `add_arguments` and `run`.

Those modules import what is heavy only when they run, so that `pagoda --help` answers at once.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from backend.config_file import ConfigError, ConfigFile, read

# In the order of the help text. The first one is meant when no command is named.
COMMANDS = ("serve", "ask", "inspect", "convert", "pack", "synth", "bench", "prove", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, COMMANDS[0])
    parser, commands = _parsers()
    try:
        file = _read_config(commands, arguments)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = parser.parse_args(arguments)
    chosen.config_file, chosen.arguments = file, arguments
    try:
        return chosen.run(chosen)
    except KeyboardInterrupt:
        return 130


def _read_config(commands: dict[str, argparse.ArgumentParser], arguments: Sequence[str]) -> ConfigFile | None:
    """Make what the file says the defaults of the command that was named."""
    command = commands.get(arguments[0])
    if command is None or {"-h", "--help"} & set(arguments):
        return None
    options = {action.dest: action for action in command._actions}
    if "config" not in options:
        return None
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--config", type=Path)
    file = read(named.parse_known_args(list(arguments[1:]))[0].config)
    command.set_defaults(**{dest: value for dest, value in file.values.items() if dest in options})
    return file


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        prog="pagoda",
        description="Talk to language models that are larger than this computer's memory.",
        epilog="Without a command, pagoda starts the page: pagoda [serve] [options]. See pagoda COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"pagoda {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    by_name: dict[str, argparse.ArgumentParser] = {}
    for name in COMMANDS:
        module = importlib.import_module(f"backend.commands.{name}")
        command = by_name[name] = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser, by_name


def _version() -> str:
    try:
        return version("pagoda")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
