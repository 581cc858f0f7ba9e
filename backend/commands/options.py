"""Options that several commands share, and the words for a wrong one."""

import argparse
from pathlib import Path

from backend.config import Settings, parse_duration, parse_folder, parse_memory
from backend.upstream_settings import UpstreamSettings, checked


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--model, --memory, --data: what is loaded, into how much memory, and where Pagoda keeps its things."""
    default = Settings()
    parser.add_argument(
        "--model", default=default.model, metavar="PATH|HF_ID|default", help="the model; default needs no hub"
    )
    add_memory_option(parser)
    add_data_option(parser)


def add_memory_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        type=memory,
        default=None,
        metavar="8GB|auto",
        help="the most memory the model may use (default: auto)",
    )


def add_data_option(parser: argparse.ArgumentParser) -> None:
    default = Settings()
    parser.add_argument(
        "--data",
        type=folder,
        default=default.data_dir,
        metavar="DIR",
        help=f"where conversations and models are kept (default: {default.data_dir})",
    )


def memory(text: str) -> int | None:
    """For argparse: a size in bytes, None for auto."""
    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def folder(text: str) -> Path:
    """For argparse: where something lies."""
    try:
        return parse_folder(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def port(text: str) -> int:
    """For argparse: a port number; 0 lets the system choose one."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port. Ports are numbers from 0 to 65535.")
    return int(text)


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """--config; backend/cli.py reads the file before the other options are parsed."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a pagoda.toml (default: the one of this user)")


def upstream(text: str) -> UpstreamSettings:
    """For argparse: NAME=BASE_URL, then key_env=, concurrency=, patience=, and model= for each one, after commas."""
    first, *more = text.split(",")
    name, _, url = first.partition("=")
    given: dict[str, str] = {}
    models: list[str] = []
    for part in more:
        key, _, value = part.strip().partition("=")
        if key == "model":
            models.append(value)
        else:
            given[key] = value
    try:
        if unknown := set(given) - {"key_env", "concurrency", "patience"}:
            raise ValueError(
                f"An upstream has no {', '.join(sorted(unknown))}, only key_env, concurrency, patience, model."
            )
        if not (count := given.get("concurrency", "4")).isdecimal() or int(count) < 1:
            raise ValueError(f"{count!r} is no number of replies at a time.")
        patience = parse_duration(given.get("patience", "any"))
        key = given.get("key_env")
        return checked(UpstreamSettings(name.strip(), url.strip(), key, int(count), patience, tuple(models)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
