"""Prints the table: hit rates of each policy on each trace, with a quarter and half of all experts in memory."""

import argparse
from pathlib import Path

from platformdirs import user_data_dir

from bench.residency.policies import POLICIES, Trace, belady, flat, hit_rate
from bench.residency.traces import recorded, synthetic
from engine.default_model import ensure_default_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(user_data_dir("pagoda", appauthor=False)))
    parser.add_argument("--model", type=Path, action="append", default=[], help="record this model too")
    args = parser.parse_args()
    default = ensure_default_model(args.data, lambda *_: None)
    traces: dict[str, tuple[Trace, int]] = {"default model, recorded": (recorded(default), 30 * 20)}
    for folder in args.model:
        trace = recorded(folder)
        traces[f"{folder.name}, recorded"] = (trace, len(set(flat(trace))))
    shape = (16, 64, 8, 300)
    for name, more in {
        "zipf 0.6": {"zipf": 0.6},
        "zipf 1.0": {"zipf": 1.0},
        "zipf 1.0, new favourites every 100": {"zipf": 1.0, "drift_every": 100},
        "zipf 0.6, 40 % kept": {"zipf": 0.6, "stickiness": 0.4},
        "uniform": {"zipf": 0.0},
    }.items():
        traces[name] = (synthetic(*shape, **more), 16 * 64)

    columns = [*POLICIES, "Belady"]
    print(f"{'trace':38} {'slots':>5} " + " ".join(f"{name:>8}" for name in columns))
    for name, (trace, experts) in traces.items():
        for share in (0.25, 0.5):
            slots = int(experts * share)
            rates = [hit_rate(trace, slots, policy) for policy in POLICIES.values()] + [belady(trace, slots)]
            print(f"{name:38} {share:>5.0%} " + " ".join(f"{rate:>8.1%}" for rate in rates))


if __name__ == "__main__":
    main()
