"""One reply: its prompt, what it has read of it, the tokens it has drawn, each delivered the moment it is sampled.

mlx-lm's own loops start the next token's forward pass before they hand out the current one. With paged experts that
pass blocks, so every token would arrive one whole token late. Here a pass is asked for by `Batch`, then comes `take`.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engine import harmony, kv, sampling
from engine.constraint import constraint_of
from engine.errors import EngineError, PromptError, PromptTooLong, Unsupported
from engine.events import Event, Finished, Generate, Progress, RunFailed, Token
from engine.harmony_speech import take_up
from engine.loader import PagedModel
from engine.prefix import Prefixes
from engine.prompt import boundaries, prompt_tokens
from engine.share import Share
from engine.soundness import check_logits
from engine.speculation import Drafter, Speculation
from engine.speech import Said, Speech
from engine.template import ends_in_thought
from engine.text import TextStream, reply_tokens
from engine.token_logprobs import logprobs

PREFILL_CHUNK = 512
PROGRESS_EVERY_S = 0.1
# What a slow reply has computed is on disk after so long at the latest, as long as writing it takes a small part of
# that.
WRITE_EVERY_S = 10.0
# A prompt that took so long to read is on disk as soon as it is read.
LONG_READ_S = 1.0
WRITING_SHARE = 20

Emit = Callable[[Event], None]


def prefill(model: PagedModel, prompt: list[int], cache: list) -> Iterator[int]:
    """Fill `cache` with the prompt, chunk by chunk, yielding how many tokens are done."""
    done = 0
    while done < len(prompt):
        chunk = prompt[done : done + model.tokens_at_once(PREFILL_CHUNK)]
        model.fill(mx.array([chunk]), cache)
        mx.clear_cache()
        done += len(chunk)
        yield done


class Run:
    """The state of one reply while it is made. `tokens` are prompt and reply; `state` holds the first `fed` of them."""

    def __init__(
        self,
        model: PagedModel,
        prefixes: Prefixes,
        request: Generate,
        emit: Emit,
        abort: threading.Event,
        draft: Drafter | None = None,
    ):
        self.model, self.prefixes, self.request, self.emit, self.abort = model, prefixes, request, emit, abort
        self.share = Share(model.stats())
        self.tokens: list[int] = []
        self.state: kv.State = []
        self.fed = 0
        self.ended = False
        self._prompt = self._cached = self._limit = self._thoughts = 0
        self._context_bound = False
        self._boundaries: list[int] = []
        self.speculation = Speculation(request.earlier, draft)
        self._stage = "prefill"
        self._times: list[float] = []
        self._prefill_s = self._reported = self._disk_before_first = 0.0
        self._written, self._written_at = 0, perf_counter()

    # --- reading ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the prompt. Raises PromptError."""
        self._started = perf_counter()
        request, tokenizer = self.request, self.model.tokenizer
        self._wish = wish = sampling.merged(request.sampling, sampling.model_defaults(self.model.path))
        stop = tuple(s for s in wish.stop if s)
        prompt = prompt_tokens(self.model, request)
        if request.raw is None and harmony.speaks(tokenizer):
            existing, self._text, self._speech = take_up(tokenizer, request, stop)
            self.tokens, thinking = [*prompt, *existing], False
        else:
            existing = reply_tokens(tokenizer, request.prefix_tokens, request.prefix_text, stop)
            self.tokens = [*prompt, *existing]
            thinking = ends_in_thought(tokenizer, self.tokens)
            self._text = TextStream(tokenizer, stop, existing, request.prefix_text)
            self._speech = Speech(tokenizer, request, thinking)
        self._prompt = len(self.tokens)
        if request.count_only:
            self.end("stop")
            return
        self._sampler = sampling.make(wish, len(tokenizer), constraint_of(tokenizer, request, thinking))
        self._limit, self._context_bound = self._most(wish.max_tokens)
        if not kv.always_cuttable(make_prompt_cache(self.model)):
            self._boundaries = boundaries(tokenizer, request, self.tokens)

    def take_up(self) -> None:
        """Start from what is known of the tokens, so that `unread` are left to read."""
        self.state, self.fed = self.prefixes.start(self.tokens)
        if not self._times:
            self._cached = self.fed
        self._written, self._written_at = self.fed, perf_counter()

    @property
    def unread(self) -> int:
        """Tokens to read before the next one can be drawn: all but the last, which is fed for its logits."""
        return len(self.tokens) - 1 - self.fed

    def read(self, most: int, at_layer: Callable[[int], None]) -> None:
        """Read the next tokens, at most so many, calling `at_layer` on the way. Raises Aborted, and then what was read
        before is still there."""
        started = perf_counter()
        to = min(self.fed + most, len(self.tokens) - 1, *(b for b in self._boundaries if b > self.fed))
        chunk, self._stage = self.tokens[self.fed : to], "prefill"
        undo = kv.undo(self.state, before_prompt=True)
        self.model.watch.begin(at_layer, self.abort)
        self.share.begin(1)
        try:
            self.model.fill(mx.array([chunk]), self.state)
        except BaseException:
            if not undo():
                self.lose()
            raise
        finally:
            self.share.end()
            self.model.watch.end()
        mx.clear_cache()
        self.fed += len(chunk)
        self._prefill_s += perf_counter() - started
        if not self.unread or self.fed in self._boundaries:
            self.prefixes.keep(self.tokens[: self.fed], self.state)
        long_read = not self.unread and perf_counter() - self._written_at > LONG_READ_S
        if self.fed in self._boundaries or long_read:
            self._write()
        self._write_if_late()
        self.report(0, force=not self.unread)

    # --- writing ---------------------------------------------------------------------------------

    def guess(self) -> list[int]:
        """Tokens that may come next, to be tried together with the last one."""
        room = self._limit - len(self._times) - 1
        return self.speculation.guess(self.tokens)[:room] if self.model.can_follow(self.state) else []

    def take_all(self, guessed: list[int], rows: list[mx.array], seconds: float) -> None:
        """The logits of the last token and of those that were guessed to follow it, after a pass of so many seconds:
        tokens are taken as long as the guesses were right. Raises what `take` raises."""
        begun = len(self._times)
        for logits, next_one in zip(rows, [*guessed, None], strict=True):
            self.fed += 1
            if self.ended:
                break
            self.take(logits)
            if self.ended or self.tokens[-1] != next_one:
                break
        if guessed:
            kv.cut(self.state, self.fed)
        self.speculation.passed(len(guessed), max(len(self._times) - begun - 1, 0), seconds)

    def fed_last(self, among: int) -> None:
        """Its last token is about to pass through the model, with so many replies in all."""
        self._stage = "decode"
        self.share.begin(among)

    def take(self, logits: mx.array) -> None:
        """The next token, from its logits [V]: told, and the reply ended where it ends. Raises CheckpointError."""
        check_logits(logits, self.model.damaged)
        token = self._sampler(self.tokens, logits)
        self._times.append(perf_counter())
        if len(self._times) == 1:
            self._disk_before_first = self.share.now().disk_s
        tokenizer, wish = self.model.tokenizer, self._wish
        if token in tokenizer.eos_token_ids:
            self.end("stop")
            return
        self.tokens.append(token)
        told = logprobs(logits, token, wish.logprobs, tokenizer) if wish.logprobs is not None else ()
        thought = self._speech.thinking
        said = self._speech.add(self._text.add(token))
        self._thoughts += thought or self._speech.thinking
        self.emit(Token(self.request.run_id, token, said.text, told, said.thought, said.calls))
        if self._stopped is not None or self._sampler.over or self._speech.over:
            self.end("stop")
        elif self.full:
            self.end("length")
        else:
            self._write_if_late()

    @property
    def _stopped(self) -> str | None:
        """The stop string that came."""
        return self._text.stopped or self._speech.stopped

    @property
    def full(self) -> bool:
        """Whether no more tokens may come."""
        return len(self._times) >= self._limit

    def end(self, reason: str) -> None:
        """Tell the end. `keep` comes after that, when nothing works on the state any more."""
        if self.ended:
            return
        self.ended = True
        times, used = self._times, self.share.now()
        gaps = [b - a for a, b in pairwise(times)]
        said = self._speech.finish(self._text.finish(whole=reason != "aborted")) if self.tokens else Said()
        self.emit(
            Finished(
                run_id=self.request.run_id,
                reason=reason,
                text=said.text,
                prompt_tokens=self._prompt,
                completion_tokens=len(times),
                ttft_s=times[0] - self._started if times else 0.0,
                prefill_s=self._prefill_s,
                decode_s=times[-1] - times[0] if times else 0.0,
                tpot_s=sum(gaps) / len(gaps) if gaps else 0.0,
                tpot_s_p50=sorted(gaps)[len(gaps) // 2] if gaps else 0.0,
                disk_s=used.disk_s,
                expert_hits=used.expert_hits,
                expert_reads=used.expert_reads,
                bytes_read=used.bytes_read,
                context_full=reason == "length" and self._context_bound,
                cached_tokens=self._cached,
                stop=self._stopped if self.tokens else None,
                thought=said.thought,
                reasoning_tokens=self._thoughts if self.request.apart else None,
                calls=said.calls,
                router_s=used.router_s,
                compute_s=max(self.share.passes_s - used.disk_s - used.router_s, 0.0),
                larger=self._larger(gaps, used.disk_s),
                guessed=self.speculation.guessed,
                guessed_right=self.speculation.right,
            )
        )

    def _larger(self, gaps: list[float], disk_s: float) -> tuple[tuple[int, float], ...]:
        """What more memory would have bought for the tokens after the first."""
        if not gaps:
            return ()
        token_s = sum(gaps) / len(gaps)
        waited = (disk_s - self._disk_before_first) / len(gaps)
        return self.model.larger_budgets(token_s, min(waited, token_s * 0.99))

    def fail(self, error: Exception) -> None:
        """Tell why it cannot go on, for a person."""
        if self.ended:
            return
        self.ended = True
        message, param = f"The engine failed: {error}. See the engine's log.", None
        if isinstance(error, EngineError):
            message, param = str(error), error.param if isinstance(error, Unsupported) else None
        elif isinstance(error, MemoryError):
            message = "The engine ran out of memory. Give a smaller budget."
        self.emit(RunFailed(self.request.run_id, type(error).__name__, message, param))

    # --- what stays ------------------------------------------------------------------------------

    def keep(self) -> None:
        """Keep what was computed, for whoever goes on from it."""
        if self.fed:
            self.prefixes.keep(self.tokens[: self.fed], self.state)
            self._write()

    def lose(self) -> None:
        """The state is broken or has to go; `take_up` finds or computes it again."""
        self.state, self.fed = [], 0

    def _write_if_late(self) -> None:
        if perf_counter() - self._written_at > max(WRITE_EVERY_S, WRITING_SHARE * self.prefixes.write_s):
            self._write()

    def _write(self) -> None:
        if self.fed > self._written:
            self.prefixes.write(self.tokens[: self.fed], self.state)
            self._written, self._written_at = self.fed, perf_counter()

    def _most(self, wish: int | None) -> tuple[int, bool]:
        """How many tokens may come, and whether it is the model's context that says so. Raises PromptError."""
        if self._prompt == 0:
            raise PromptError("The prompt is empty. Write something first.")
        context = self.model.sizes.context_tokens
        if not context:
            return 1 << 20 if wish is None else wish, False
        room = context - self._prompt
        if room <= 0:
            raise PromptTooLong(
                f"This conversation has {self._prompt:,} tokens, and the model can hold {context:,}. "
                "Start a new conversation, or shorten the message."
            )
        return (room, True) if wish is None or wish > room else (wish, False)

    def report(self, layer: int, force: bool = False) -> None:
        """Tell where the run is, at most ten times a second."""
        now = perf_counter()
        if self.ended or (not force and now - self._reported < PROGRESS_EVERY_S):
            return
        self._reported = now
        used, reads = self.share.now(), self._stage == "prefill"
        self.emit(
            Progress(
                run_id=self.request.run_id,
                stage=self._stage,
                tokens_done=self.fed if reads else len(self._times),
                tokens_total=len(self.tokens) if reads else self._limit,
                layer=layer,
                layers=self.model.sizes.layers,
                expert_hits=used.expert_hits,
                expert_reads=used.expert_reads,
                bytes_read=used.bytes_read,
            )
        )
