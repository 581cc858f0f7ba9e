"""BigRig by its library (its command line needs macOS): slots for some experts a layer, its packed copy.

The first run packs. `memory_bytes` counts experts only, as its own slots do.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("BIGRIG_HOME", str(Path(sys.argv[1]).parent / "bigrig-home"))

import mlx.core as mx
from bigrig_engine import stream
from measured import arguments, report
from mlx_lm.models.cache import make_prompt_cache

folder, prompt, tokens, memory_bytes, warm = arguments()
config = json.loads(Path(folder, "config.json").read_text())
experts, layers = config["num_experts"], config["num_hidden_layers"]
packed = Path(f"{folder}.bigrig.experts")
if not packed.exists():
    stream.ensure_packed(folder, str(packed))
    sys.exit("packed; run again")
slots = max(config["num_experts_per_tok"], int(experts * memory_bytes / packed.stat().st_size))
manifest, source = stream.expert_source(folder, str(packed))
model, _, handle = stream.load_streaming(folder, source, capacity=slots, manifest=manifest, verbose=False)
cache = make_prompt_cache(model)


def step(ids: list[int]) -> int:
    for start in range(0, len(ids) - 1, 64):
        model(mx.array([ids[start : min(start + 64, len(ids) - 1)]]), cache=cache)
        mx.eval([c.state for c in cache])
    return int(mx.argmax(model(mx.array([ids[-1:]]), cache=cache)[0, -1]))


if warm:
    step(prompt[:4])
    cache = make_prompt_cache(model)
report(step, lambda token: step([token]), prompt, tokens)
handle.close()
