"""Which value of each option holds, and where it came from: a flag, the file, or Pagoda itself."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from backend.config_file import ConfigFile

# As they are written in the file, and the name that argparse gives them.
_SHOWN = {
    "model": "model",
    "memory": "memory",
    "data": "data",
    "host": "host",
    "port": "port",
    "open": "no_open",
    "log_level": "log_level",
    "log_prompts": "log_prompts",
}


def effective(args: argparse.Namespace, arguments: Sequence[str], file: ConfigFile | None) -> dict[str, dict[str, Any]]:
    """`{option: {value, source}}`; keys of upstreams only as whether their variable is set."""
    found: dict[str, dict[str, Any]] = {}
    for shown, dest in _SHOWN.items():
        value = getattr(args, dest)
        if shown == "open":
            value = not value
        elif shown == "memory":
            value = "auto" if value is None else value
        value = str(value) if shown == "data" else value
        found[shown] = {"value": value, "source": _source(shown, dest, arguments, file)}
    from_file = {one.name: one for one in (file.values.get("upstream", ()) if file else ())}
    for name, one in {one.name: one for one in args.upstream}.items():
        key = f"{one.key_variable} is {'set' if one.key else 'not set'}"
        patience = "any" if one.patience_s is None else f"{one.patience_s:g} s"
        value = f"{one.base_url}, {one.concurrency} at a time, patience {patience}, {key}"
        in_file = file is not None and from_file.get(name) == one
        source = f"{file.path} line {file.lines.get(f'upstream.{name}', '?')}" if in_file and file else "--upstream"
        found[f"upstream.{name}"] = {"value": value, "source": source}
    if os.environ.get("PAGODA_TOKEN", "").strip():
        found["token"] = {"value": "(set)", "source": "PAGODA_TOKEN"}
    return found


def _source(shown: str, dest: str, arguments: Sequence[str], file: ConfigFile | None) -> str:
    flag = f"--{dest.replace('_', '-')}"
    named = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    if any(len(one) > 3 and flag.startswith(one) for one in named):
        return flag
    if file is not None and dest in file.values:
        return f"{file.path} line {file.lines.get(shown, '?')}"
    return "default"
