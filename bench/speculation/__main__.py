"""What guessing tokens gains or costs: replies with and without it in turns, on quoting, code and open prose.

The turns go there and back (without, with, with, without), and the ratio is the median of neighbours': what else the
machine does comes and goes more slowly. CPU seconds are shown beside, for machines that others use meanwhile.
"""

import argparse
from pathlib import Path
from statistics import median
from time import process_time

from platformdirs import user_data_dir

from backend.commands.bench import experts
from engine import loader
from engine.batch import Batch
from engine.default_model import ensure_default_model
from engine.draft import load_draft
from engine.events import Event, Finished, Generate, Sampling, Token

TEXT = """The harbour lies still in the morning. Three boats have come in during the night, and their crews are asleep.
On the quay a woman mends a net, and her dog watches the gulls. Nobody hurries here before the bell has rung twice."""
CODE = """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def spread(values):
    middle = mean(values)
    total = 0
    for value in values:
        total = total + (value - middle) ** 2
    return total / len(values)"""
TASKS = {
    "quoting": f"Repeat this text word for word, twice:\n\n{TEXT}",
    "code editing": f"Rename the variable total to result, and show the whole code:\n\n{CODE}",
    "open prose": "Write a long story about a lighthouse keeper and her dog.",
}


def reply(batch: Batch, text: str, tokens: int) -> tuple[list[int], float, float]:
    """The tokens of a greedy reply, tokens a second after the first, and CPU seconds in all."""
    events: list[Event] = []
    sampling = Sampling(temperature=0.0, repetition_penalty=1.0, max_tokens=tokens)
    batch.add(Generate("r", ({"role": "user", "content": text},), sampling), events.append)
    began = process_time()
    batch.finish()
    spent = process_time() - began
    (end,) = [event for event in events if isinstance(event, Finished)]
    said = [event.token for event in events if isinstance(event, Token)]
    return said, (end.completion_tokens - 1) / end.decode_s, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(user_data_dir("pagoda", appauthor=False)))
    parser.add_argument("--model", type=Path, help="another than the default model")
    parser.add_argument("--draft", type=Path, help="a smaller model with the same tokens, to guess as well")
    parser.add_argument("--experts", type=experts, default=1.0)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    draft = load_draft(args.draft) if args.draft else None
    model = loader.load(args.model or ensure_default_model(args.data, lambda *_: None), expert_bytes=args.experts)
    print(f"{'task':14} {'without':>9} {'with':>9} {'ratio':>7} {'CPU':>7}   tokens/s, median of {args.rounds}")
    for task, text in TASKS.items():
        speeds: dict[bool, list[float]] = {False: [], True: []}
        spent: dict[bool, list[float]] = {False: [], True: []}
        said = set()
        for number in range(args.rounds):
            for guesses in (False, True) if number % 2 == 0 else (True, False):
                tokens, speed, cpu = reply(Batch(model, 0, guesses=guesses, draft=draft), text, args.tokens)
                speeds[guesses].append(speed)
                spent[guesses].append(cpu)
                said.add(tuple(tokens))
        assert len(said) == 1, "guessing changed the tokens"
        ratio = median(b / a for a, b in zip(speeds[False], speeds[True], strict=True))
        cpu = median(a / b for a, b in zip(spent[False], spent[True], strict=True))
        print(f"{task:14} {median(speeds[False]):9.1f} {median(speeds[True]):9.1f} {ratio:7.2f} {cpu:7.2f}")
    model.close()


if __name__ == "__main__":
    main()
