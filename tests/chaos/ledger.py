"""How often each fault was survived in this run, and the table of it for the README.

PAGODA_CHAOS_ROUNDS (1), PAGODA_CHAOS_SEED (drawn) and PAGODA_CHAOS_REPORT (none) are what `make chaos` sets.
"""

import os
import random
import secrets
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

HEAD = "| what breaks | what you see | what is kept | times |\n|---|---|---|---|\n"


@dataclass
class Ledger:
    """`rounds` is how often everything is broken: once in `make test`, many times in `make chaos`."""

    rounds: int = field(default_factory=lambda: int(os.environ.get("PAGODA_CHAOS_ROUNDS") or 1))
    seed: int = field(default_factory=lambda: int(os.environ.get("PAGODA_CHAOS_SEED") or secrets.randbelow(10**6)))
    report: str = field(default_factory=lambda: os.environ.get("PAGODA_CHAOS_REPORT", ""))
    chunks: int = 0  # that were received and found again
    rows: dict[str, list] = field(default_factory=dict)

    @property
    def long(self) -> bool:
        """Whether there is time for what takes minutes."""
        return bool(self.report)

    def draw(self, name: str) -> random.Random:
        """Chance for one test, the same whichever others run."""
        return random.Random(f"{self.seed} {name}")

    def survived(self, fault: str, see: str, kept: str, times: int = 1) -> None:
        """`see` and `kept` are a person's words."""
        row = self.rows.setdefault(fault, [see, kept, 0])
        row[2] += times

    def write(self) -> None:
        """Where `make chaos` wants it."""
        if not self.report or not self.rows:
            return
        rows = [f"| {fault} | {see} | {kept} | {times:,} |" for fault, (see, kept, times) in self.rows.items()]
        Path(self.report).write_text(
            HEAD + "\n".join(rows) + f"\n\n`make chaos ROUNDS={self.rounds} SEED={self.seed}`, {date.today()}: "
            f"{self.chunks:,} received chunks were all found again, on disk and over HTTP.\n"
        )
