"""A process of its own that looks at one model: sizes, and for a range of memory budgets what fits and how fast it is.

`python -m backend.forecast_child NAME DATA_DIR` prints one JSON object, `{"problem": ...}` where it is no model that
can be used. It builds the model with MLX and measures the disk, which no page should have to wait for.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

STEPS = 24  # budgets between the least and the one that holds everything; a slider needs no more
SPARE_BYTES = 16 << 20  # what one process takes differs that much from what another does: a least that always works


def forecast(name: str, data_dir: Path) -> dict[str, Any]:
    """Bytes, and tokens per second as `pagoda inspect` predicts them. Raises EngineError."""
    from engine import memory
    from engine.default_model import model_folder
    from engine.inspection import inspect, limit
    from engine.loader import open_model, resolve

    folder = model_folder(data_dir) if name == "default" else resolve(name)
    opened = open_model(folder)
    found = inspect(folder)
    fixed = found.least_budget_bytes - opened.least_slot_bytes + SPARE_BYTES
    whole, least = fixed + found.expert_bytes, fixed + opened.least_slot_bytes
    touched = found.trunk_bytes + found.expert_bytes_per_token
    steps = []
    for step in range(STEPS + 1):
        budget = least + (max(whole, least) - least) * step // STEPS
        share = min(1.0, (budget - fixed) / found.expert_bytes) if found.expert_bytes else 1.0
        read = found.expert_bytes_per_token * (1 - share)
        speed = limit(touched, read, found.disk_bytes_per_s, found.memory_bytes_per_s)
        steps.append({"budget_bytes": budget, "share": round(share, 4), "tokens_per_s": speed})
        if whole <= least:
            break
    return {
        "architecture": found.architecture,
        "trunk_bytes": found.trunk_bytes,
        "expert_bytes": found.expert_bytes,
        "least_bytes": least,
        "whole_bytes": max(whole, least),
        "physical_bytes": memory.physical_bytes(),
        "auto_bytes": memory.auto_budget(),
        "steps": steps,
    }


def main() -> None:
    """Entry point."""
    from engine.errors import EngineError

    os.nice(10)  # a reply that is being written comes first
    name, data_dir = sys.argv[1:]
    try:
        said = forecast(name, Path(data_dir))
    except EngineError as error:
        said = {"problem": str(error)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
