"""The real `pagoda serve` in a process of its own, which a test can end in any way a computer can end it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START = "import sys; from backend.cli import main; sys.exit(main())"
REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60  # two busy cores; every wait ends as soon as what it waits for is there


def give_model(data_dir: Path, prepared: Path) -> None:
    """Put the finished default model into a data folder, as links where the file system can."""
    for source in (prepared / "models").rglob("*"):
        target = data_dir / source.relative_to(prepared)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copyfile(source, target)


class RunningPagoda:
    """`url` stays the same when it is started again: a page that is open finds it back.

    `before` is put before the command, `env` into its environment, `start` is the Python that it runs.
    """

    def __init__(
        self, data_dir: Path, *options: str, before: Sequence[str] = (), env: dict[str, str] | None = None,
        start: str = START, log: Path | None = None,
    ) -> None:  # fmt: skip
        self.data_dir = data_dir
        self.log = log or data_dir / "serve.log"
        self.options = options
        self._before, self._env, self._code = before, env or {}, start
        self._port = 0
        self.start()

    def start(self) -> None:
        """Returns as soon as the page can be used; the model may still be on its way."""
        command = [*self._before, sys.executable, "-c", self._code, "serve", "--no-open", "--port", str(self._port)]
        self._log = open(self.log, "ab")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [*command, "--data", str(self.data_dir), *self.options],
            cwd=REPOSITORY,
            env={**os.environ, **self._env},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "http://" in line, f"it did not start: {self.log.read_text()}"
        self.url = line.split("http://", 1)[1].split("/", 1)[0]
        self._port = int(self.url.rsplit(":", 1)[1])
        self.url = f"http://{self.url}"

    def wait_until_ready(self) -> None:
        """Until the model is loaded."""
        until(lambda: self.get("/healthz")["model"]["state"] == "ready", "the model is ready")

    def kill(self) -> None:
        """As a power cut would: nothing gets a chance to tidy up."""
        engine = self.engine_pid
        self._process.kill()
        self._process.wait()
        until(lambda: not alive(engine), "the engine has noticed that Pagoda is gone")
        self._log.close()

    def kill_both(self) -> None:
        """The engine first, and Pagoda before it can notice."""
        self.kill_engine()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def end(self, how: signal.Signals) -> tuple[int, float]:
        """Ask it to end; its exit status, and the seconds it took."""
        began = time.monotonic()
        self._process.send_signal(how)
        status = self._process.wait(timeout=30)
        self._log.close()
        return status, time.monotonic() - began

    def kill_engine(self) -> None:
        """End the engine's process alone, as the system does when memory runs out."""
        os.kill(self.engine_pid, signal.SIGKILL)

    @contextmanager
    def engine_held(self) -> Iterator[None]:
        """Let no time pass for the engine: a scene in the middle of a reply lasts as long as the test needs it."""
        engine = self.engine_pid
        os.kill(engine, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # killed meanwhile
                os.kill(engine, signal.SIGCONT)

    def stop(self) -> None:
        """As Ctrl-C does."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=30)
        self._log.close()

    @property
    def pid(self) -> int:
        """The process that serves the page."""
        return self._process.pid

    @property
    def engine_pid(self) -> int:
        """The process in which the model is."""
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
        for line in table.stdout.splitlines():
            pid, parent, args = line.split(None, 2)
            if int(parent) == self._process.pid and "engine.worker" in args:
                return int(pid)
        raise AssertionError("there is no engine process")

    def engine_cpu_seconds(self) -> float:
        """What the engine has computed so far. It stands still when the engine does."""
        stat = Path(f"/proc/{self.engine_pid}/stat")
        if stat.exists():
            fields = stat.read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        ps = subprocess.run(
            ["ps", "-o", "time=", "-p", str(self.engine_pid)], capture_output=True, text=True, check=True
        )
        minutes, seconds = ps.stdout.strip().rsplit(":", 1)
        return 60 * float(minutes.rsplit(":", 1)[-1]) + float(seconds)

    # --- what a person does not do, but a test needs to set its scene ---

    def new_conversation(self, max_tokens: int, temperature: float = 0.0) -> str:
        """An empty conversation whose replies are short enough for a test, and the same every time."""
        body = {"sampling": {"max_tokens": max_tokens, "temperature": temperature}}
        return self.post("/api/conversations", body)["id"]

    def send(self, conversation: str, text: str, request_id: str = "") -> dict:
        """A message; the ids of what came of it."""
        return self.post(
            f"/api/conversations/{conversation}/messages", {"request_id": request_id or text, "text": text}
        )

    def attempts(self, conversation: str) -> list[dict]:
        """All attempts of a conversation, in the order of its messages."""
        return [one for message in self.conversation(conversation)["messages"] for one in message.get("attempts", ())]

    def conversation(self, id: str) -> dict:
        """What is on disk about a conversation."""
        return self.get(f"/api/conversations/{id}")

    def get(self, path: str) -> dict:
        return self.call("GET", path)

    def post(self, path: str, body: dict | None = None) -> dict:
        return self.call("POST", path, body or {})

    def call(self, method: str, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(self.url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error


def until(condition, what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition that nothing announces. Its failure says what was waited for."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")
