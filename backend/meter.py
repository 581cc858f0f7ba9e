"""What one run took: usage and timings, from the source's own events and the gateway's clock. Nothing is estimated."""

import time
from typing import Any

from backend import chunks
from backend.sources import Delta, Ended, Reading, SourceEvent
from engine.events import Finished, Loading, Progress, Token


class Meter:
    """Watches a run from the moment it was accepted."""

    def __init__(self) -> None:
        self._accepted = time.monotonic()
        self._turn: float | None = None
        self._loaded: float | None = None
        self._first_token: float | None = None
        self._tokens = 0
        self._loading = False
        self._prompt_tokens: int | None = None
        self._progress: Progress | None = None
        self._finished: Finished | None = None
        self._ended: Ended | None = None

    def elapsed(self) -> float:
        """Seconds since the run was accepted."""
        return time.monotonic() - self._accepted

    def turn_came(self) -> None:
        """The wait in the queue is over."""
        self._turn = self.elapsed()

    def see(self, event: SourceEvent) -> None:
        """Take note of the next event of the source."""
        if isinstance(event, Loading):
            self._loading = True
            return
        if self._loaded is None:
            self._loaded = self.elapsed()
        match event:
            case Progress():
                self._progress = event
                if event.stage == "prefill":
                    self._prompt_tokens = event.tokens_total
            case Reading():
                self._prompt_tokens = event.tokens_total
            case Token() | Delta():
                self._tokens += 1
                if self._first_token is None:
                    self._first_token = self.elapsed()
            case Ended():
                self._ended = event
            case Finished():
                self._finished = event

    def progress(self, event: Loading | Progress | Reading) -> chunks.Progress:
        """A source's progress in the shape of a chunk."""
        if isinstance(event, Loading):
            return chunks.Progress(
                stage="loading",
                elapsed_s=self._rounded_elapsed(),
                load_stage=event.stage,
                load_done=event.done,
                load_total=event.total,
                load_unit=event.unit,
            )
        if isinstance(event, Reading):
            done, total = event.tokens_done, event.tokens_total
            return chunks.Progress("prefill", self._rounded_elapsed(), tokens_done=done, tokens_total=total)
        return chunks.Progress(
            stage=event.stage,
            elapsed_s=self._rounded_elapsed(),
            tokens_done=event.tokens_done,
            tokens_total=event.tokens_total,
            layer=event.layer,
            layers=event.layers,
            expert_hits=event.expert_hits,
            expert_reads=event.expert_reads,
            bytes_read=event.bytes_read,
        )

    def queued(self, position: int) -> chunks.Progress:
        """Waiting, `position`-th in line."""
        return chunks.Progress(stage="queued", elapsed_s=self._rounded_elapsed(), queue_position=position)

    def usage(self) -> dict[str, int] | None:
        """Tokens read and written; None when the source never said."""
        if self._finished is not None:
            prompt, completion = self._finished.prompt_tokens, self._finished.completion_tokens
        elif (end := self._ended) is not None:
            if end.prompt_tokens is None or end.completion_tokens is None:
                return None
            prompt, completion = end.prompt_tokens, end.completion_tokens
        elif self._prompt_tokens is not None:
            prompt, completion = self._prompt_tokens, self._tokens
        else:
            return None
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        cached = self._ended.cached_tokens if self._ended is not None else None
        return usage | ({"cached_tokens": cached} if cached else {})

    def timings(self) -> dict[str, Any]:
        """Seconds and counters, only those that are known. `ttft_s` counts from acceptance, `engine_ttft_s` from the
        start of the engine's run."""
        known: dict[str, Any] = {"ttft_s": self._first_token, "queued_s": self._turn, "total_s": self.elapsed()}
        if self._loading and self._turn is not None:
            known["loading_s"] = (self._loaded if self._loaded is not None else self.elapsed()) - self._turn
        elif self._turn is not None:
            known["loading_s"] = 0.0
        if (end := self._finished) is not None:
            known |= {
                "engine_ttft_s": end.ttft_s,
                "prefill_s": end.prefill_s,
                "decode_s": end.decode_s,
                "tpot_s": end.tpot_s,
                "tpot_s_p50": end.tpot_s_p50,
                "disk_s": end.disk_s,
                "tokens_per_s": 1 / end.tpot_s if end.tpot_s > 0 else None,
            }
        if (upstream := self._ended) is not None:
            known |= {"prefill_s": upstream.prefill_s, "decode_s": upstream.decode_s}
        if (counters := self._finished or self._progress) is not None:
            known |= {
                "expert_hits": counters.expert_hits,
                "expert_reads": counters.expert_reads,
                "bytes_read": counters.bytes_read,
            }
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in known.items() if v is not None}

    def _rounded_elapsed(self) -> float:
        return round(self.elapsed(), 3)
