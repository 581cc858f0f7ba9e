"""pagoda.toml: the options of the command line, kept in a file. What is wrong in it is named by line and key."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from backend.config import LOG_LEVELS, parse_duration, parse_folder, parse_memory
from backend.upstream_settings import UpstreamSettings, checked

_ASSIGNMENT = re.compile(r"""\s*(["']?)([\w.-]+)\1\s*=""")
_TABLE = re.compile(r"""\s*\[\s*([\w."'-]+)\s*\]""")


class ConfigError(ValueError):
    """The file cannot be used; the message says where and why."""


@dataclass(frozen=True)
class ConfigFile:
    """`values` by the name of the option as argparse has it; `lines` says where each came from."""

    path: Path
    exists: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


def default_path() -> Path:
    """The file that is read where none is named."""
    return user_config_path("pagoda", appauthor=False) / "pagoda.toml"


def read(path: Path | None = None) -> ConfigFile:
    """The options in the file; none where the usual file is not there. Raises ConfigError."""
    found = path or default_path()
    try:
        text = found.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"There is no file {path}.") from None
        return ConfigFile(found)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{found} cannot be read: {error}.") from error
    try:
        raw = tomllib.loads(text)
    except ValueError as error:  # also a number of more digits than Python reads
        raise ConfigError(f"{found} is no TOML: {str(error).rstrip('.')}.") from error
    except RecursionError as error:
        raise ConfigError(f"{found} is too deep: lists within lists within lists.") from error
    lines = _lines(text)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key == "upstream":
            values[key] = [_upstream(found, lines, name, table) for name, table in _table(found, lines, key, value)]
        else:
            dest, option = _option(found, lines, key)
            values[dest] = _checked(found, lines, key, value, option)
    return ConfigFile(found, True, values, lines)


# --- one option ----------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it is a text in quotes")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is true or false")
    return value


def _port(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 65535:
        raise ValueError("ports are numbers from 0 to 65535")
    return value


def _level(value: Any) -> str:
    if value not in LOG_LEVELS:
        raise ValueError(f"it is one of {', '.join(LOG_LEVELS)}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("it is a number from 1 on")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ValueError("it is a list of texts")
    return tuple(value)


# The key in the file: the name of the option, and what its value may be.
_OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "model": ("model", _text),
    "draft": ("draft", _text),
    "memory": ("memory", lambda value: parse_memory(_text(value))),
    "data": ("data", lambda value: parse_folder(_text(value))),
    "host": ("host", _text),
    "port": ("port", _port),
    "open": ("no_open", lambda value: not _truth(value)),
    "log_level": ("log_level", _level),
    "log_prompts": ("log_prompts", _truth),
}
_UPSTREAM: dict[str, Callable[[Any], Any]] = {
    "base_url": _text,
    "key_env": _text,
    "concurrency": _count,
    "patience": lambda value: parse_duration(_text(value)),
    "models": _texts,
}


def _option(path: Path, lines: dict[str, int], key: str) -> tuple[str, Callable[[Any], Any]]:
    if key not in _OPTIONS:
        raise _wrong(path, lines, key, f"there is no such option. Options are: {', '.join((*_OPTIONS, 'upstream'))}")
    return _OPTIONS[key]


def _checked(path: Path, lines: dict[str, int], key: str, value: Any, option: Callable[[Any], Any]) -> Any:
    try:
        return option(value)
    except ValueError as error:
        raise _wrong(path, lines, key, str(error)) from error


def _table(path: Path, lines: dict[str, int], key: str, value: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise _wrong(path, lines, key, "write a table for each upstream: [upstream.NAME]")
    return list(value.items())


def _upstream(path: Path, lines: dict[str, int], name: str, table: dict[str, Any]) -> UpstreamSettings:
    where = f"upstream.{name}"
    given: dict[str, Any] = {}
    for key, value in table.items():
        if key in ("key", "api_key"):
            words = "a key does not belong into a file. Put it into the environment and name the variable: key_env"
            raise _wrong(path, lines, f"{where}.{key}", words)
        if key not in _UPSTREAM:
            words = f"there is no such option. An upstream has: {', '.join(_UPSTREAM)}"
            raise _wrong(path, lines, f"{where}.{key}", words)
        given[key] = _checked(path, lines, f"{where}.{key}", value, _UPSTREAM[key])
    if "base_url" not in given:
        raise _wrong(path, lines, where, "it needs a base_url")
    patience = given.pop("patience", None)
    try:
        return checked(UpstreamSettings(name, given.pop("base_url"), patience_s=patience, **given))
    except ValueError as error:
        raise _wrong(path, lines, f"{where}.base_url", str(error)) from error


def _wrong(path: Path, lines: dict[str, int], key: str, words: str) -> ConfigError:
    line = lines.get(key) or lines.get(key.rpartition(".")[0])
    return ConfigError(f"{path}{f', line {line}' if line else ''}: {key}: {words.rstrip('.')}.")


def _lines(text: str) -> dict[str, int]:
    """The line of each key, `table.key` within a table. tomllib does not tell."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = match[1].replace('"', "").replace("'", "")
            found.setdefault(table, number)
            found.setdefault(table.partition(".")[0], number)
        elif match := _ASSIGNMENT.match(line):
            found.setdefault(f"{table}.{match[2]}" if table else match[2], number)
    return found
