"""`pagoda ask`: one question, one streamed reply in the terminal; how far it is goes to stderr."""

import argparse
import asyncio
import sys

from backend.commands.options import add_config_option, add_model_options

HELP = "ask one question and print the reply as it is written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", help="what to ask; - reads it from standard input")
    add_config_option(parser)
    add_model_options(parser)
    parser.add_argument("--system", help="an instruction that the model reads first")
    parser.add_argument("--max-tokens", type=int, help="the longest reply")
    parser.add_argument("--temperature", type=float, help="0 always takes the likeliest token")
    parser.add_argument("--seed", type=int, help="makes chance repeatable")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 when the model ended its reply or reached the limit, 1 when something went wrong."""
    from backend.errors import Invalid
    from backend.sampling import clean, to_engine

    question = sys.stdin.read() if args.question == "-" else args.question
    if not question.strip():
        print('There is no question. Write it in quotes: pagoda ask "What is a pagoda?"', file=sys.stderr)
        return 2
    chosen = {"temperature": args.temperature, "seed": args.seed, "max_tokens": args.max_tokens}
    try:
        sampling = to_engine(clean(chosen))
    except Invalid as error:
        print(error.message, file=sys.stderr)
        return 2
    return asyncio.run(_ask(args, question, sampling))


async def _ask(args: argparse.Namespace, question: str, sampling) -> int:
    from backend.commands.terminal import ProgressLine, show_loading, show_reading
    from engine.client import EngineClient
    from engine.errors import EngineError
    from engine.events import Finished, Generate, Progress, RunFailed, Token

    line = ProgressLine(sys.stderr)
    client = EngineClient(args.model, args.data, args.memory)
    client.watch(lambda status: show_loading(line, status))
    system = [{"role": "system", "content": args.system}] if args.system else []
    request = Generate("ask", (*system, {"role": "user", "content": question}), sampling)
    await client.start()
    try:
        async for event in client.generate(request):
            match event:
                case Progress(stage="prefill"):
                    show_reading(line, event)
                case Token(text=text) | Finished(text=text) if text:
                    line.clear()
                    sys.stdout.write(text)
                    sys.stdout.flush()
                case RunFailed(message=message):
                    line.say(message)
                    return 1
            if isinstance(event, Finished):
                line.clear()
                print(flush=True)
                line.say(_summary(event))
        return 0
    except EngineError as error:
        line.say(f"\n{error}")
        return 1
    finally:
        line.clear()
        await client.close()


def _summary(end) -> str:
    rate = f", {1 / end.tpot_s:.1f} tokens/s" if end.tpot_s > 0 else ""
    why = {"length": ", cut at the limit"}.get(end.reason, "")
    return f"{end.completion_tokens} tokens{rate}, the first after {end.ttft_s:.1f} s{why}"
