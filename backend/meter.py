"""What one run took, and how long it may still take: from the source's own events and the gateway's clock alone."""

import re
import time
from typing import Any

from backend import chunks
from backend.pace import Pace, Range, Track, remaining
from backend.sources import Delta, Ended, Reading, SourceEvent
from engine.events import Finished, Loading, Progress, Token

_THINKING = re.compile(r"\s*<think(?:ing)?>")
_THOUGHT = re.compile(r"</think(?:ing)?>")


class Meter:
    """Watches a run from the moment it was accepted. `pace` is what earlier replies of the same source measured."""

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._prefill, self._decode = Track(), Track()
        self._prompt_chunk = 0  # prompt tokens in one pass through the layers, once a pass has shown it
        self._limited = False
        self._thinking: str | None = ""  # the text so far while it may be thinking; None: it is not, or not any more
        self._thinking_since = 0.0
        self._thinking_s: float | None = None
        self._heard = self._accepted = time.monotonic()
        self._turn: float | None = None
        self._loaded: float | None = None
        self._first_token: float | None = None
        self._tokens = 0
        self._from_text = False
        self._loading = False
        self._prompt_tokens: int | None = None
        self._progress: Progress | None = None
        self._finished: Finished | None = None
        self._ended: Ended | None = None

    def elapsed(self) -> float:
        """Seconds since the run was accepted."""
        return time.monotonic() - self._accepted

    def silence(self) -> float:
        """Seconds since the source last said anything, or its turn came."""
        return time.monotonic() - self._heard

    def turn_came(self) -> None:
        """The wait in the queue is over."""
        self._turn = self.elapsed()
        self._heard = time.monotonic()

    def asked(self, max_tokens: int | None, from_text: bool = False) -> None:
        """What the person set as the limit of the reply, if anything; and whether it goes on from text alone."""
        self._limited, self._from_text = max_tokens is not None, from_text

    def see(self, event: SourceEvent) -> None:
        """Take note of the next event of the source."""
        self._heard = time.monotonic()
        if isinstance(event, Loading):
            self._loading = True
            return
        if self._loaded is None:
            self._loaded = self.elapsed()
        match event:
            case Progress():
                self._mark(event)
                self._progress = event
                if event.stage == "prefill":
                    self._prompt_tokens = event.tokens_total
            case Reading():
                self._prompt_tokens = event.tokens_total
            case Token(text=text) | Delta(text=text):
                self._tokens += 1
                self._think(text)
                if self._first_token is None:
                    self._first_token = self.elapsed()
            case Ended():
                self._ended = event
            case Finished():
                self._finished = event

    def _mark(self, event: Progress) -> None:
        within = event.layer / event.layers if event.layers else 0.0
        if event.stage == "decode":
            self._decode.mark(self.elapsed(), event.tokens_done + within)
        elif event.stage == "prefill":
            before = self._progress.tokens_done if self._progress is not None else event.tokens_done
            self._prompt_chunk = max(self._prompt_chunk, event.tokens_done - before)
            rest = min(self._prompt_chunk, event.tokens_total - event.tokens_done)
            self._prefill.mark(self.elapsed(), event.tokens_done + within * rest)

    def _think(self, text: str) -> None:
        if self._thinking is None or not text:
            return
        if not self._thinking:
            self._thinking_since = self.elapsed()
        self._thinking += text
        if not _THINKING.match(self._thinking):
            if len(self._thinking.lstrip()) >= len("<thinking>"):
                self._thinking = None
        elif _THOUGHT.search(self._thinking):
            self._thinking, self._thinking_s = None, self.elapsed() - self._thinking_since

    def _eta(self, event: Progress) -> Range | None:
        """Until the first token in prefill; in decode until the limit, where the person set one."""
        if event.stage == "prefill":
            return remaining(event.tokens_total - self._prefill.units, self._prefill.rates(), self._pace.prefill)
        if event.stage == "decode" and self._limited:
            return remaining(event.tokens_total - self._decode.units, self._decode.rates(), self._pace.decode)
        return None

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
        eta = self._eta(event)
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
            eta_low_s=_short(eta.low) if eta else None,
            eta_high_s=_short(eta.high) if eta else None,
            thinking_s=_short(self._thinking_s) if self._thinking_s is not None else None,
        )

    def queued(self, position: int, behind: str | None = None) -> chunks.Progress:
        """Waiting, `position`-th in line, `behind` another model that is at work."""
        elapsed = self._rounded_elapsed()
        return chunks.Progress(stage="queued", elapsed_s=elapsed, queue_position=position, queued_behind=behind)

    def begun(self) -> chunks.Progress:
        """Its turn has come after a wait; the source has said nothing yet."""
        return chunks.Progress(stage="begun", elapsed_s=self._rounded_elapsed())

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
        end = self._finished or self._ended
        if end is None:
            return usage
        if end.cached_tokens:
            usage["cached_tokens"] = end.cached_tokens
        if end.reasoning_tokens is not None:
            usage["reasoning_tokens"] = end.reasoning_tokens
        return usage

    def timings(self) -> dict[str, Any]:
        """Seconds and counters, only those that are known. `ttft_s` counts from acceptance, `engine_ttft_s` from the
        start of the engine's run."""
        known: dict[str, Any] = {"ttft_s": self._first_token, "queued_s": self._turn, "total_s": self.elapsed()}
        known |= {"thinking_s": self._thinking_s, "prefill_tokens_per_s": self._prefill.rate()}
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
                "router_s": end.router_s,
                "compute_s": end.compute_s,
                "larger": [[nbytes, round(rate, 4)] for nbytes, rate in end.larger] or None,
                "tokens_per_s": 1 / end.tpot_s if end.tpot_s > 0 else None,
                "guessed_tokens": end.guessed or None,
                "guessed_right": end.guessed_right if end.guessed else None,
            }
        if self._from_text:  # not from its tokens: the server was given the text as the beginning of its answer
            known["continued_from"] = "text"
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


def _short(seconds: float) -> float:
    return round(seconds, 1)
