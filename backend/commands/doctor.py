"""`pagoda doctor`: what this machine has and how fast it is, as far as it matters for paging experts."""

import argparse
import json
import sys
from dataclasses import asdict

from backend.commands import serve
from backend.effective import effective

HELP = "show what this machine has: device, memory, disk speed, kernels, versions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    serve.add_arguments(parser)  # to show what they would be
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 when the data folder can't be written."""
    from engine.errors import DiskError
    from engine.machine import examine

    try:
        found = examine(args.data)
    except (OSError, DiskError) as error:
        words = str(error).rstrip(".")
        print(f"The data folder {args.data} can't be used: {words}. Name another one with --data.", file=sys.stderr)
        return 1
    options = effective(args, args.arguments, args.config_file)
    if args.json:
        print(json.dumps(asdict(found) | {"options": options}))
        return 0
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    print(
        f"System    {found.system}\n"
        f"Device    {found.device}, {found.cores} cores, kernels: {found.kernels}\n"
        f"Memory    {found.memory_bytes / 1e9:.1f} GB, of which --memory auto uses "
        f"{found.auto_budget_bytes / 1e9:.1f}; one core reads {found.memory_bytes_per_s / 1e9:.1f} GB/s\n"
        f"Disk      {found.disk_bytes_per_s / 1e9:.2f} GB/s in parallel random reads of 1 MB, "
        f"in {found.disk_probed_in}\n"
        f"Versions  {versions}"
    )
    place = args.config_file.path if args.config_file else ""
    print(f"Options   {place}{'' if args.config_file and args.config_file.exists else ' (there is no such file)'}")
    for name, option in options.items():
        print(f"  {name} = {option['value']}   [{option['source']}]")
    return 0
