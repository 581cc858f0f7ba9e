"""`pagoda inspect`: what a model needs, whether it fits, and how fast it would be on this disk."""

import argparse
import json
import sys
from dataclasses import asdict

from backend.commands.options import add_config_option, add_data_option, add_memory_option

HELP = "show a model's sizes, whether it fits, and how fast it would run here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", help="a folder, a hub id, or default")
    add_memory_option(parser)
    add_config_option(parser)
    add_data_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 when it is no model that can be read."""
    from backend.commands.models import folder_of
    from engine.errors import EngineError
    from engine.inspection import inspect

    try:
        found = inspect(folder_of(args.name, args.data), args.memory)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(asdict(found)))
        return 0
    experts = (
        f"{found.expert_layers} layers with {found.experts_per_layer} experts, {found.top_k} used a token: "
        f"{found.expert_bytes / 1e9:.2f} GB, {found.expert_bytes_per_token / 1e6:.0f} MB of it for one token"
        if found.expert_bytes
        else "no experts: nothing of it is paged"
    )
    if found.runs:
        verdict = f"{'all of it fits' if found.fits else f'{found.resident_experts:.0%} of its experts fit'}"
    else:
        verdict = f"too little: it needs {found.least_budget_bytes / 1e9:.2f} GB"
    print(
        f"{found.model} ({found.architecture}, {found.layers} layers)\n"
        f"  always in memory: {found.trunk_bytes / 1e9:.2f} GB\n"
        f"  {experts}\n"
        f"  with {found.budget_bytes / 1e9:.1f} GB of memory: {verdict}\n"
        f"  at most {found.predicted_tokens_per_s:.1f} tokens/s, by the speed of this disk "
        f"({found.disk_bytes_per_s / 1e9:.2f} GB/s) and memory ({found.memory_bytes_per_s / 1e9:.1f} GB/s)"
    )
    return 0
