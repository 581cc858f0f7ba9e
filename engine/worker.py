"""The engine's child process: commands come in on stdin, events go out on a pipe of their own.

It is a process so that an out-of-memory kill never takes the page down. It dies with its parent: end of stdin ends it.
"""

import argparse
import logging
import os
import queue
import sys
import threading
from pathlib import Path
from time import monotonic

from engine.errors import EngineError, Unsupported
from engine.events import (
    Abort,
    Command,
    Event,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    RunFailed,
    Shutdown,
    decode_command,
    encode,
)

log = logging.getLogger("pagoda.engine")

PROGRESS_EVERY_S = 0.1


class Worker:
    """Runs commands one after the other; aborts are heeded at once, from the reading thread."""

    def __init__(self, events_fd: int):
        self._events = events_fd
        self._writing = threading.Lock()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._aborts: dict[str, threading.Event] = {}
        self._model = None
        self._stage, self._reported = "", 0.0

    def emit(self, event: Event) -> None:
        """Send one event; a line is written whole."""
        line = encode(event)
        with self._writing:
            while line:
                line = line[os.write(self._events, line) :]

    def read_commands(self, stdin_fd: int) -> None:
        """Take commands until the parent is gone, then leave at once: nobody is there to read a reply."""
        with os.fdopen(stdin_fd, "rb") as stdin:
            for line in stdin:
                command = decode_command(line)
                if isinstance(command, Abort):
                    if event := self._aborts.get(command.run_id):
                        event.set()
                    continue
                if isinstance(command, Shutdown):
                    break
                if isinstance(command, Generate):
                    self._aborts[command.run_id] = threading.Event()
                self._commands.put(command)
        os._exit(0)

    def work(self) -> None:
        """Carry out commands forever."""
        while True:
            command = self._commands.get()
            if isinstance(command, Load):
                self._load(command)
            elif isinstance(command, Generate):
                self._generate(command)

    def _load(self, command: Load) -> None:
        try:
            self.emit(self._loaded(command))
        except EngineError as error:
            self.emit(LoadFailed(type(error).__name__, str(error)))
        except MemoryError:
            self.emit(LoadFailed("BudgetError", "Not enough memory to load this model. Give a smaller budget."))
        except Exception as error:
            log.exception("loading %s failed", command.model)
            self.emit(LoadFailed(type(error).__name__, f"{command.model} did not load: {error}. See the engine's log."))

    def _loaded(self, command: Load) -> Loaded:
        import mlx.core as mx

        from engine import loader, machine

        # It warns of every architecture that transformers itself does not know.
        logging.getLogger("transformers").setLevel(logging.ERROR)
        if self._model is not None:
            self._model.close()
            self._model = None
        name = command.model
        if command.model == "default":
            from engine.default_model import ensure_default_model

            path = ensure_default_model(Path(command.data_dir), self._loading)
            name = path.name
        else:
            path = loader.resolve(command.model)
            name = path.name if Path(command.model).expanduser().is_dir() else command.model
        # Freed buffers would otherwise be kept without bound, outside any budget.
        mx.set_cache_limit(64 << 20)
        budget = "auto" if command.memory_bytes is None else command.memory_bytes
        self._model = model = loader.load(path, memory_bytes=budget, on_progress=self._loading)
        sizes = model.sizes
        return Loaded(
            name=name,
            path=str(path),
            device=machine.device_name(),
            layers=sizes.layers,
            experts_per_layer=sizes.experts_per_layer,
            top_k=sizes.top_k,
            trunk_bytes=sizes.trunk_bytes,
            expert_bytes=sizes.expert_bytes,
            slot_bytes=sizes.slot_bytes,
            budget_bytes=sizes.budget_bytes,
            context_tokens=sizes.context_tokens,
            paged=sizes.slot_bytes < sizes.expert_bytes,
        )

    def _loading(self, stage: str, done: int, total: int, unit: str) -> None:
        """Report load progress: every change of stage, every end, and at most ten steps a second between."""
        now = monotonic()
        if stage == self._stage and done < total and now - self._reported < PROGRESS_EVERY_S:
            return
        self._stage, self._reported = stage, now
        self.emit(Loading(stage, done, total, unit))

    def _generate(self, request: Generate) -> None:
        from engine.decode import Run

        abort = self._aborts[request.run_id]
        try:
            if self._model is None:
                raise EngineError("No model is loaded. Load one first.")
            Run(self._model, request, self.emit, abort).generate()
        except EngineError as error:
            param = error.param if isinstance(error, Unsupported) else None
            self.emit(RunFailed(request.run_id, type(error).__name__, str(error), param))
        except MemoryError:
            self.emit(RunFailed(request.run_id, "MemoryError", "The engine ran out of memory. Give a smaller budget."))
        except Exception as error:
            log.exception("run %s failed", request.run_id)
            self.emit(
                RunFailed(request.run_id, type(error).__name__, f"The engine failed: {error}. See the engine's log.")
            )
        finally:
            del self._aborts[request.run_id]


def main() -> None:
    """Entry point of `python -m engine.worker`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events-fd", type=int, required=True)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    commands = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a library prints belongs in the log
    worker = Worker(args.events_fd)
    threading.Thread(target=worker.read_commands, args=(commands,), daemon=True, name="commands").start()
    worker.work()


if __name__ == "__main__":
    main()
