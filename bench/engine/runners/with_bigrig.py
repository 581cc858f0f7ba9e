"""BigRig by its library (its command line needs macOS): slots for some experts a layer, its packed copy.

The first run packs. `memory_bytes` counts experts only, as its own slots do.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("BIGRIG_HOME", str(Path(sys.argv[1]).parent / "bigrig-home"))

from bigrig_engine import stream
from measured import arguments
from mlx_loop import measure

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
measure(model, prompt, tokens, warm, chunk=64)
handle.close()
