"""One line in the terminal that moves: how far loading and reading are. Plain lines where there is no terminal."""

import shutil
from typing import TextIO

from engine.client import EngineStatus
from engine.events import Loading, Progress

_STAGES = {
    "wait": "Another Pagoda is making the model",
    "download": "Downloading the model",
    "convert": "Converting the model",
    "open": "Opening the model",
    "compile": "Making the engine ready for this processor (once)",
    "trunk": "Reading the model",
    "warm-up": "Warming up",
}
_BAR = 24


class ProgressLine:
    """On a terminal each `show` replaces the last one; elsewhere only a new `topic` is worth a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty()
        self._topic: str | None = None
        self._dirty = False

    def show(self, topic: str, words: str, how_far: str) -> None:
        if self._moves:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{words} {how_far}"[: width + 4])
            self._dirty = True
        elif topic != self._topic:
            self._write(f"{words} ...\n")
        self._topic = topic

    def clear(self) -> None:
        """Leave the line to others."""
        if self._dirty:
            self._write("\r\x1b[K")
            self._dirty = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._topic = None
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def show_loading(line: ProgressLine, status: EngineStatus) -> None:
    """What the engine says of loading, in words: a moving line, and one that stays when it is ready or failed."""
    if status.state == "loading" and status.loading is not None:
        step = status.loading
        line.show(step.stage, _STAGES.get(step.stage, step.stage), f"{bar(step.done, step.total)} {_amount(step)}")
    elif status.state == "ready" and status.loaded is not None:
        model = status.loaded
        paging = f", experts paged within {size(model.budget_bytes)}" if model.paged else ""
        line.say(f"{model.name} is ready on {model.device}{paging}.")
    elif status.state == "failed" and status.failure is not None:
        line.say(f"The model could not be loaded. {status.failure.message}")


def show_reading(line: ProgressLine, event: Progress) -> None:
    """How much of the prompt the model has read."""
    done = event.tokens_done + (event.layer / event.layers if event.layers and event.tokens_done == 0 else 0)
    bytes_read = f", {size(event.bytes_read)} from disk" if event.bytes_read else ""
    words = f"{event.tokens_done} of {event.tokens_total} tokens, layer {event.layer} of {event.layers}{bytes_read}"
    line.show("prefill", "Reading the prompt", f"{bar(done, event.tokens_total)} {words}")


def bar(done: float, total: float) -> str:
    filled = round(_BAR * min(done / total, 1)) if total > 0 else 0
    return "█" * filled + "░" * (_BAR - filled)


def size(count: float) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def _amount(step: Loading) -> str:
    if step.unit == "bytes":
        return f"{size(step.done)} of {size(step.total)}" if step.total > 0 else size(step.done)
    return f"{step.done} of {step.total} {step.unit}"
