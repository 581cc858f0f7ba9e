"""`pagoda bench`: how fast a model runs under a budget, next to what the disk and the memory would allow."""

import argparse
import json
import sys

from backend.commands.options import add_config_option, add_model_options, memory

HELP = "measure how fast a model runs under a memory budget"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_option(parser)
    add_model_options(parser)
    parser.add_argument("--experts", type=experts, metavar="25%|least|all|2GB", help="memory for experts alone")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="length of the prompt (default: 128)")
    parser.add_argument("--tokens", type=int, default=64, help="how many tokens to write (default: 64)")
    parser.add_argument("--batch", type=int, default=1, help="how many conversations write at once (default: 1)")
    parser.add_argument(
        "--lookahead", choices=("auto", "on", "off"), default="auto", help="read ahead what layers will probably want"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def experts(text: str) -> float | int | str:
    """For argparse: a share, "least", "all", or a size in bytes."""
    if text in ("least", "all"):
        return text
    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a share. Write it like 25%.")
        return share
    size = memory(text)
    if size is None:
        raise argparse.ArgumentTypeError("experts can't be auto. Write a share like 25%, least, all, or a size.")
    return size


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 when the model can't be measured."""
    from backend.commands.models import folder_of
    from engine.bench import bench
    from engine.errors import EngineError

    if args.tokens < 2 or args.prompt_tokens < 2 or args.batch < 1:
        print("A measurement needs at least 2 tokens of prompt, 2 of reply, and 1 conversation.", file=sys.stderr)
        return 2
    try:
        result = bench(
            folder_of(args.model, args.data),
            memory_bytes=args.memory,
            expert_bytes=args.experts,
            prompt_tokens=args.prompt_tokens,
            tokens=args.tokens,
            batch=args.batch,
            lookahead={"auto": None, "on": True, "off": False}[args.lookahead],
        )
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result.to_dict()))
        return 0
    rate = result.prefetch_hit_rate
    guesses = "" if rate is None else f", {rate:.0%} of what was read ahead was right"
    print(
        f"{result.model} on {result.device}: trunk {result.trunk_bytes / 1e6:,.0f} MB, "
        f"experts {result.slot_bytes / 1e6:,.0f} of {result.expert_bytes / 1e6:,.0f} MB in memory\n"
        f"  prompt of {result.prompt_tokens}: first token after {result.ttft_s:.2f} s "
        f"({result.prefill_tokens_per_s:.1f} tokens/s)\n"
        f"  then {result.decode_tokens_per_s:.1f} tokens/s"
        f"{f' for {result.batch} conversations together' if result.batch > 1 else ''}, "
        f"{result.tpot_s_p50 * 1e3:.0f} ms a token (median)\n"
        f"  {result.expert_hit_rate:.0%} of experts from memory, "
        f"{result.bytes_read_per_token / 1e6:.1f} MB read a token{guesses}\n"
        f"  disk {result.disk_bytes_per_s / 1e9:.2f} GB/s and memory {result.memory_bytes_per_s / 1e9:.1f} GB/s would "
        f"allow {result.limit_tokens_per_s:.1f} tokens/s ({result.limit_ratio:.0%} reached)\n"
        f"  most memory used: {result.peak_rss_bytes / 1e6:,.0f} MB"
    )
    return 0
