"""The engine's child process: commands come in on stdin, events go out on a pipe of their own.

It is a process so that an out-of-memory kill never takes the page down. It dies with its parent: end of stdin ends it.
"""

import argparse
import logging
import os
import queue
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from engine.errors import EngineError
from engine.events import (
    Abort,
    Command,
    Event,
    Finished,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    RunFailed,
    Shutdown,
    Warm,
    decode_command,
    encode,
)

log = logging.getLogger("pagoda.engine")

PROGRESS_EVERY_S = 0.1
# So long it may take to write down what replies have computed, once it is time to leave.
LEAVE_S = 4.0


class Worker:
    """Carries out commands in their order, replies all at once; aborts are heeded from the reading thread."""

    def __init__(self, events_fd: int):
        self._events = events_fd
        self._writing = threading.Lock()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._aborts: dict[str, threading.Event] = {}
        self._model = None
        self._batch = None
        self._stage, self._reported = "", 0.0

    def emit(self, event: Event) -> None:
        """Send one event; a line is written whole. Nobody may be there to read it any more."""
        line = encode(event)
        with self._writing, suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._events, line) :]

    def read_commands(self, stdin_fd: int) -> None:
        """Take commands until the parent is gone or says so, then leave soon."""
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
        for abort in list(self._aborts.values()):
            abort.set()
        self._commands.put(Shutdown())
        sleep(LEAVE_S)
        os._exit(0)

    def work(self) -> None:
        """Carry out commands until it is time to leave."""
        while True:
            command = self._next()
            if isinstance(command, Shutdown):
                if self._batch is not None:
                    self._batch.close()
                os._exit(0)
            elif isinstance(command, Load):
                self._finish_replies()
                self._load(command)
            elif isinstance(command, Generate):
                self._generate(command)
            elif isinstance(command, Warm):
                if self._batch is not None:
                    self._batch.warm(command.messages)
            elif self._batch is not None:
                self._batch.step()

    def _next(self) -> Command | None:
        """The next command; None when there is none and replies are to be made. Waiting, experts are warmed."""
        busy = self._batch is not None and self._batch.busy
        while True:
            more = not busy and self._model is not None and self._model.idle()
            try:
                return self._commands.get(block=not busy and not more)
            except queue.Empty:
                if busy:
                    return None

    def _finish_replies(self) -> None:
        """Another model has to wait until the replies of this one are made."""
        if self._batch is not None:
            self._batch.finish()

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
        from engine.batch import Batch, room_for_states
        from engine.compiling import compile_ahead
        from engine.draft import load_draft, speaks_like
        from engine.prefix_files import PrefixFiles, fingerprint

        self._unload()
        # First, so that its memory is counted when the model's budget is divided.
        draft = load_draft(loader.resolve(command.draft)) if command.draft else None
        name = command.model
        if command.model == "default":
            from engine.default_model import ensure_default_model, model_folder

            if not model_folder(Path(command.data_dir)).exists() and machine.device_name() == "cpu":
                # There is a download to wait for, and kernels to compile meanwhile.
                threading.Thread(target=compile_ahead, args=(lambda *_: None,), daemon=True, name="compiling").start()
            path = ensure_default_model(Path(command.data_dir), self._loading)
            name = path.name
        else:
            path = loader.resolve(command.model)
            name = path.name if Path(command.model).expanduser().is_dir() else command.model
        # Freed buffers would otherwise be kept without bound, outside any budget.
        mx.set_cache_limit(64 << 20)
        budget = "auto" if command.memory_bytes is None else command.memory_bytes
        data, name_of_files = Path(command.data_dir), fingerprint(path, machine.device_name())
        heat = data / "heat" / f"{name_of_files}.npz"
        self._model = model = loader.load(path, memory_bytes=budget, on_progress=self._loading, heat_file=heat)
        files = PrefixFiles(data / "prefixes", name_of_files)
        if draft is not None and not speaks_like(draft, model):
            draft.close()
            if command.draft_must:
                self._unload()
                words = f"{draft.name} has other tokens than {name}, so it cannot guess what that will say."
                raise EngineError(f"{words} Start Pagoda without --draft, or name a draft of the same family.")
            log.warning("%s does not guess for %s: it has other tokens", draft.name, name)
            draft = None
        self._batch = Batch(model, room_for_states(model), files, draft=draft)
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
            draft=draft.name if draft is not None else None,
        )

    def _unload(self) -> None:
        if self._batch is not None:
            self._batch.close()
        if self._model is not None:
            self._model.close()
        self._batch = self._model = None

    def _loading(self, stage: str, done: int, total: int, unit: str) -> None:
        """Report load progress: every change of stage, every end, and at most ten steps a second between."""
        now = monotonic()
        if stage == self._stage and done < total and now - self._reported < PROGRESS_EVERY_S:
            return
        self._stage, self._reported = stage, now
        self.emit(Loading(stage, done, total, unit))

    def _generate(self, request: Generate) -> None:
        def emit(event: Event) -> None:
            if isinstance(event, Finished | RunFailed):
                self._aborts.pop(request.run_id, None)
            self.emit(event)

        if self._batch is None:
            message = "No model is loaded. Load one first."
            emit(RunFailed(request.run_id, EngineError.__name__, message))
        else:
            self._batch.add(request, emit, self._aborts[request.run_id])


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
