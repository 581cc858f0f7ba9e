"""`pagoda prove`: compares a model paged with the same model as stock mlx-lm computes it, on this machine."""

import argparse
import json
import sys
from dataclasses import asdict

from backend.commands.bench import experts
from backend.commands.options import add_config_option, add_data_option, add_memory_option

HELP = "prove that paging a model changes nothing: every layer and the tokens against stock mlx-lm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", help="a folder, a hub id, or default")
    add_memory_option(parser)
    add_config_option(parser)
    add_data_option(parser)
    parser.add_argument("--experts", type=experts, metavar="25%|least|all|2GB", help="memory for experts alone")
    parser.add_argument("--prompt-tokens", type=int, default=70, help="length of the prompt (default: 70)")
    parser.add_argument("--tokens", type=int, default=8, help="how many tokens to write (default: 8)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 when all is equal, 1 when it is not or the model can't be run."""
    from backend.commands.models import folder_of
    from engine.errors import EngineError
    from engine.proving import LayerProof, prove

    def show(proof: LayerProof, layers: int) -> None:
        if args.json:
            return
        equal = "identical" if proof.apart == 0 else f"differs by {proof.apart:.1e}"
        others = f", {proof.other_choices} of {proof.tokens} tokens at a near-tie" if proof.other_choices else ""
        print(f"  layer {proof.layer + 1}/{layers}: {equal}{others}", flush=True)

    try:
        proof = prove(
            folder_of(args.name, args.data),
            memory_bytes=args.memory,
            expert_bytes=args.experts,
            prompt_tokens=args.prompt_tokens,
            tokens=args.tokens,
            on_layer=show,
        )
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(asdict(proof) | {"holds": proof.holds}))
        return 0 if proof.holds else 1
    equal = sum(a == b for a, b in zip(proof.tokens, proof.reference_tokens, strict=True))
    print(
        f"  {equal} of {len(proof.tokens)} tokens are the same; logits differ by {proof.logits_apart:.1e} at most\n"
        + (
            "Paged and in memory are equal, to the rounding of float32 sums."
            if proof.holds
            else "Paged and in memory are NOT equal. Please report this, with the lines above."
        )
    )
    return 0 if proof.holds else 1
