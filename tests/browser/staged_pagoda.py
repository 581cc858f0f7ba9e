"""A Pagoda whose model says exactly what a test says: silence, slowness, pace, which no real one shows on demand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.browser.running_pagoda import REPOSITORY, RunningPagoda


class StagedPagoda(RunningPagoda):
    """`say("token", "Hello")` returns once the gateway has heard it. tests/browser/stage.py has the methods."""

    def start(self) -> None:
        self._log = open(self.data_dir / "serve.log", "ab")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.browser.stage", str(self.data_dir), str(self._port)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.url = self._answer().strip().rstrip("/")
        self._port = int(self.url.rsplit(":", 1)[1])

    def say(self, method: str, *arguments: Any) -> None:
        """What the source does next."""
        self.begin(method, *arguments)
        assert self._answer() == "done\n"

    def begin(self, method: str, *arguments: Any) -> None:
        """The same, without waiting for it; `finish_saying` waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()

    def finish_saying(self) -> None:
        assert self._answer() == "done\n"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended: {Path(self._log.name).read_text()}"
        return line

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def stop(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=30)
        self._log.close()
