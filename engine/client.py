"""The supervisor of the engine's child process, for asyncio: starts it, talks to it, restarts it when it dies.

A run that was going on when the child died raises EngineDied; the model is loaded again at once.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine import events, memory
from engine.errors import EngineDied, ModelChanged, ModelNotLoaded

log = logging.getLogger("pagoda.engine")

RunEvent = events.Progress | events.Token | events.Finished | events.RunFailed

# A model that kills its process while loading would do so forever.
MAX_DEATHS_WHILE_LOADING = 3
# The child itself leaves sooner; one that hangs is not waited for.
LEAVE_S = 5.0
_LINE_LIMIT = 1 << 24
_CHANGED = "A file of the model was changed, so it is loaded again."
_HUNG = "The engine no longer answered, so it was ended. It starts again and loads the model."


@dataclass(frozen=True)
class EngineStatus:
    """Whether the model can be used, and how far loading is."""

    state: Literal["loading", "ready", "failed"]
    loading: events.Loading | None = None
    loaded: events.Loaded | None = None
    failure: events.LoadFailed | None = None
    note: str | None = None  # why it is loading again, for a person


class EngineClient:
    """One model in one child process. `start` it, then `generate`; `close` it in the end."""

    def __init__(self, model: str, data_dir: Path, memory_bytes: int | None = None, draft: str | None = None):
        self.model, self.data_dir, self.memory_bytes, self._draft = model, data_dir, memory_bytes, draft
        self._draft_for = model  # for others it guesses if it can
        self.status = EngineStatus("loading")
        self._child: asyncio.subprocess.Process | None = None
        self._watchers: list[Callable[[EngineStatus], None]] = []
        self._runs: dict[str, asyncio.Queue[RunEvent | EngineDied]] = {}
        self._supervision: asyncio.Task | None = None
        self._again = asyncio.Event()
        self._asked = 0  # loads asked for and not answered yet
        self._hung = self._replaced = False
        self._note: str | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id while it lives."""
        return self._child.pid if self._child and self._child.returncode is None else None

    def watch(self, callback: Callable[[EngineStatus], None]) -> Callable[[], None]:
        """Call back on every change of `status`; returns the function that ends this."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback) if callback in self._watchers else None

    async def start(self) -> None:
        """Start the child and let it load; returns at once."""
        self._supervision = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def close(self) -> None:
        """End the child, which first writes down what it has computed. Runs that are going on raise EngineDied."""
        if self._supervision:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        if self._child and self._child.returncode is None:
            self._send(events.Shutdown())
            try:
                await asyncio.wait_for(self._child.wait(), LEAVE_S)
            except TimeoutError:
                self._child.kill()
                await self._child.wait()
        self._end_runs(EngineDied("The engine was shut down."))

    def retry(self) -> None:
        """After a failed load: try again."""
        if self.status.state == "failed":
            self._set(EngineStatus("loading"))
            self._again.set()

    def switch(self, model: str) -> None:
        """Have another model in the child from now on; the old one is let go. Harmless for the one that is there."""
        if model != self.model:
            self.model = model
            self._reload()

    def _reload(self) -> None:
        """In a new child: what the old one does not give back to the system would count against the budget. The old one
        first writes down what it has computed."""
        was_loading = self.status.state == "loading"
        self._set(EngineStatus("loading"))
        self._again.set()
        if (child := self._child) and child.returncode is None:
            self._replaced = True
            if was_loading:
                child.kill()
                return
            self._send(events.Shutdown())
            asyncio.get_running_loop().call_later(LEAVE_S, lambda: child.kill() if child.returncode is None else None)

    def rebudget(self, memory_bytes: int | None) -> None:
        """Load the model again, into that much memory (None: auto). Harmless when it is the same."""
        if memory_bytes != self.memory_bytes:
            self.memory_bytes = memory_bytes
            self._reload()

    async def wait_ready(self) -> events.Loaded:
        """The loaded model, as soon as it is there. Raises ModelNotLoaded when loading fails."""
        changed = asyncio.Event()
        stop = self.watch(lambda _: changed.set())
        try:
            while True:
                if self.status.loaded:
                    return self.status.loaded
                if self.status.failure:
                    raise ModelNotLoaded(self.status.failure.message)
                changed.clear()
                await changed.wait()
        finally:
            stop()

    async def generate(self, request: events.Generate) -> AsyncIterator[RunEvent]:
        """Run one reply; the last event is Finished or RunFailed.

        Waits for the model first; one that could not be loaded is tried again, since what was wrong may be mended by
        now. Raises ModelNotLoaded, and EngineDied when the child ends in mid-run. Leaving the iteration early aborts
        the run.
        """
        self.retry()
        await self.wait_ready()
        queue = self._runs[request.run_id] = asyncio.Queue()
        ended = False
        try:
            self._send(request)
            while True:
                event = await queue.get()
                ended = isinstance(event, EngineDied | events.Finished | events.RunFailed)
                if isinstance(event, EngineDied):
                    raise event
                yield event
                if ended:
                    return
        finally:
            if not ended:
                self.abort(request.run_id)
            self._runs.pop(request.run_id, None)

    def warm(self, messages: tuple[dict[str, Any], ...]) -> None:
        """Somebody looks at this conversation: what is known of it is made ready. Harmless where nothing is loaded."""
        if self.status.state == "ready":
            self._send(events.Warm(messages))

    def abort(self, run_id: str) -> None:
        """Stop a run inside its current layer; it ends with Finished(reason="aborted")."""
        if run_id in self._runs:
            self._send(events.Abort(run_id))

    def kill(self) -> None:
        """End a child that no longer answers; the supervisor starts a new one."""
        if self._child and self._child.returncode is None:
            self._hung = True
            self._child.kill()

    # --- the child ---------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Keep a child alive; whatever goes wrong with that is said, and can be tried again."""
        while True:
            try:
                await self._keep_alive()
            except EngineDied as death:
                self._fail("EngineDied", str(death))
            except OSError as error:
                message = (
                    f"The engine could not be started: {error}. Check the data folder {self.data_dir}, then retry."
                )
                self._fail("OSError", message)
            except Exception as error:
                log.exception("the engine's supervisor failed")
                self._fail(
                    type(error).__name__, f"The engine could not be supervised: {error}. Retry, or restart Pagoda."
                )
            await self._again.wait()
            self._again.clear()
            self._set(EngineStatus("loading"))

    def _fail(self, kind: str, message: str) -> None:
        if self._child and self._child.returncode is None:
            self._child.kill()
        self._end_runs(EngineDied(message))
        self._set(EngineStatus("failed", failure=events.LoadFailed(kind, message)))

    async def _keep_alive(self) -> None:
        deaths = 0
        while True:
            child, reader = await self._spawn()
            self._again.clear()
            self._asked = 0
            self._load()
            listening = asyncio.create_task(self._listen(reader))
            try:
                await self._until_dead(listening)
            finally:
                listening.cancel()
            if listening.done() and not listening.cancelled() and (error := listening.exception()):
                raise error
            code = await child.wait()
            if self._replaced:
                self._replaced = False
                self._end_runs(EngineDied("The engine was started again with another model or budget."))
                continue
            was_ready = self.status.state == "ready"
            deaths = 0 if was_ready else deaths + 1
            death = EngineDied(_HUNG if self._hung else _obituary(code, was_ready, self._budget()))
            self._note, self._hung = _HUNG if self._hung else None, False
            log.warning("%s", death)
            self._end_runs(death)
            if deaths >= MAX_DEATHS_WHILE_LOADING:
                raise death
            self._set(EngineStatus("loading"))

    async def _until_dead(self, listening: asyncio.Task) -> None:
        """Return when the child has closed its pipe; meanwhile pass on wishes to load again."""
        while not listening.done():
            again = asyncio.create_task(self._again.wait())
            await asyncio.wait({listening, again}, return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
            if self._again.is_set():
                self._again.clear()
                self._load()

    def _budget(self) -> int:
        return self.memory_bytes or memory.auto_budget()

    def _load(self) -> None:
        self._asked += 1
        must = self.model == self._draft_for
        self._send(events.Load(self.model, str(self.data_dir), self.memory_bytes, self._draft, must))

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        read_fd, write_fd = os.pipe()
        try:
            with open(self._log_file(), "ab") as log_file:
                self._child = child = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "engine.worker", "--events-fd", str(write_fd),
                    stdin=asyncio.subprocess.PIPE, stdout=log_file, stderr=log_file, pass_fds=(write_fd,),
                    # Ctrl-C is for Pagoda, which then ends the child in an orderly way.
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": _python_path()},
                )  # fmt: skip
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb"))
        return child, reader

    def _log_file(self) -> Path:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        path = self.data_dir / "engine.log"
        if path.exists() and path.stat().st_size > 1 << 20:
            path.replace(path.with_suffix(".log.old"))
        return path

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._receive(events.decode_event(line))

    def _receive(self, event: events.Event) -> None:
        if isinstance(event, events.Loading | events.Loaded | events.LoadFailed) and self._replaced:
            return
        if isinstance(event, events.Loaded | events.LoadFailed):
            self._asked -= 1
            if self._asked > 0:
                return  # of a model that was switched away from while it was loading
        if isinstance(event, events.Loading):
            self._set(EngineStatus("loading", loading=event))
        elif isinstance(event, events.Loaded):
            self._set(EngineStatus("ready", loaded=event))
        elif isinstance(event, events.LoadFailed):
            self._set(EngineStatus("failed", failure=event))
        elif queue := self._runs.get(event.run_id):
            queue.put_nowait(event)
            if isinstance(event, events.RunFailed) and event.kind == ModelChanged.__name__ and self.status.loaded:
                self._note = _CHANGED
                self._reload()

    def _send(self, command: events.Command) -> None:
        # Writing to a child that has just died is no error here: its death is reported by the supervisor.
        if self._child and self._child.stdin and not self._child.stdin.is_closing():
            self._child.stdin.write(events.encode(command))

    def _end_runs(self, death: EngineDied) -> None:
        for queue in self._runs.values():
            queue.put_nowait(death)

    def _set(self, status: EngineStatus) -> None:
        if status.state == "loading":
            status = replace(status, note=self._note)
        else:
            self._note = None
        self.status = status
        for callback in list(self._watchers):
            callback(status)


def _python_path() -> str:
    """So that the child finds this package from any working folder."""
    here = str(Path(__file__).parent.parent)
    old = os.environ.get("PYTHONPATH")
    return f"{here}{os.pathsep}{old}" if old else here


def _obituary(code: int, was_ready: bool, budget: int) -> str:
    doing = "was running" if was_ready else "was loading the model"
    if code == -signal.SIGKILL:
        return (
            f"The engine was killed while it {doing}. Most often the system does that when memory runs out: it was "
            f"given {budget / 1e6:,.0f} MB. Try --memory {smaller_budget(budget) / 1e6:.0f}MB."
        )
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"The engine {how} while it {doing}. What it said is in engine.log in the data folder."


def smaller_budget(budget: int) -> int:
    """Bytes to try after memory ran out under `budget`: what fits here, or a quarter less where that was tried."""
    fits = memory.auto_budget()
    return fits if fits < budget else budget * 3 // 4
