"""One reply: prompt to tokens, prefill in chunks, then token by token, each delivered the moment it is sampled.

mlx-lm's own loops start the next token's forward pass before they hand out the current one. With paged experts that
pass blocks, so every token would arrive one whole token late.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engine import sampling
from engine.errors import Aborted, PromptError, PromptTooLong
from engine.events import Event, Finished, Generate, Progress, Token
from engine.loader import PagedModel
from engine.soundness import check_logits
from engine.template import template_variables
from engine.text import TextStream, reply_tokens
from engine.token_logprobs import logprobs

PREFILL_CHUNK = 512
PROGRESS_EVERY_S = 0.1

Emit = Callable[[Event], None]


def prompt_tokens(model: PagedModel, request: Generate) -> list[int]:
    """The ids of the conversation, without the part of the reply that already exists. Raises PromptError."""
    tokenizer = model.tokenizer
    messages = [dict(message) for message in request.messages]
    if request.raw is not None:
        return [int(i) for i in tokenizer.encode(request.raw)]
    variables = template_variables(tokenizer, request.template)
    try:
        if tokenizer.chat_template is None and not getattr(tokenizer, "has_chat_template", False):
            ids = tokenizer.encode("\n\n".join(message["content"] for message in messages))
        else:
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **variables)
    except Exception as error:
        raise PromptError(f"The model's chat template does not accept this conversation: {error}") from error
    ids = [int(i) for i in ids]
    return ids


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
    """The state of one reply while it is made."""

    def __init__(self, model: PagedModel, request: Generate, emit: Emit, abort: threading.Event):
        self.model, self.request, self.emit, self.abort = model, request, emit, abort
        self.before = replace(model.stats())
        self.stage = "prefill"
        self.done = 0
        self.total = 0
        self.reported = 0.0
        self.layers = model.sizes.layers

    def generate(self) -> None:
        """Make the reply, emitting Progress, Token and, in the end, Finished. Raises EngineError."""
        self.model.watch.begin(self._at_layer, self.abort)
        try:
            self._generate()
        finally:
            self.model.watch.end()

    def _generate(self) -> None:
        started = perf_counter()
        request, tokenizer = self.request, self.model.tokenizer
        wish = sampling.merged(request.sampling, sampling.model_defaults(self.model.path))
        sampler = sampling.make(wish, len(tokenizer))
        wish_stop = tuple(s for s in wish.stop if s)
        existing = reply_tokens(tokenizer, request.prefix_tokens, request.prefix_text, wish_stop)
        prompt = [*prompt_tokens(self.model, request), *existing]
        limit, context_bound = self._limit(len(prompt), wish.max_tokens)
        tokens = list(prompt)
        text = TextStream(tokenizer, wish_stop, existing, request.prefix_text)
        times: list[float] = []
        prefill_s, reason, cache = 0.0, "length", make_prompt_cache(self.model)
        try:
            self._prefill(prompt[:-1], cache)
            prefill_s = perf_counter() - started
            self.stage, self.done, self.total = "decode", 0, limit
            while len(times) < limit:
                logits = self.model(mx.array([tokens[-1:]]), cache=cache)[0, -1]
                check_logits(logits, self.model.damaged)
                token = sampler(tokens, logits)
                times.append(perf_counter())
                if token in tokenizer.eos_token_ids:
                    reason = "stop"
                    break
                tokens.append(token)
                self.done = len(times)
                told = logprobs(logits, token, wish.logprobs, tokenizer) if wish.logprobs is not None else ()
                self.emit(Token(request.run_id, token, text.add(token), told))
                if text.stopped:
                    reason = "stop"
                    break
                self.model.watch.check()
        except Aborted:
            reason = "aborted"
        stats, before = self.model.stats(), self.before
        gaps = [b - a for a, b in pairwise(times)]
        self.emit(
            Finished(
                run_id=request.run_id,
                reason=reason,
                text=text.finish(whole=reason != "aborted"),
                prompt_tokens=len(prompt),
                completion_tokens=len(times),
                ttft_s=times[0] - started if times else 0.0,
                prefill_s=prefill_s,
                decode_s=times[-1] - times[0] if times else 0.0,
                tpot_s=sum(gaps) / len(gaps) if gaps else 0.0,
                tpot_s_p50=sorted(gaps)[len(gaps) // 2] if gaps else 0.0,
                disk_s=stats.disk_s - before.disk_s,
                expert_hits=stats.expert_hits - before.expert_hits,
                expert_reads=stats.expert_reads - before.expert_reads,
                bytes_read=stats.bytes_read - before.bytes_read,
                context_full=reason == "length" and context_bound,
            )
        )

    def _prefill(self, prompt: list[int], cache: list) -> None:
        self.total = len(prompt) + 1
        for done in prefill(self.model, prompt, cache):
            self.done = done
            self.model.watch.check()
        self.report(0, force=True)

    def _limit(self, prompt: int, wish: int | None) -> tuple[int, bool]:
        """How many tokens may come, and whether it is the model's context that says so. Raises PromptError."""
        if prompt == 0:
            raise PromptError("The prompt is empty. Write something first.")
        context = self.model.sizes.context_tokens
        if not context:
            return wish or 1 << 20, False
        room = context - prompt
        if room <= 0:
            raise PromptTooLong(
                f"This conversation has {prompt:,} tokens, and the model can hold {context:,}. "
                "Start a new conversation, or shorten the message."
            )
        return (room, True) if wish is None or wish > room else (wish, False)

    def _at_layer(self, layer: int) -> None:
        self.report(layer)

    def report(self, layer: int, force: bool = False) -> None:
        """Tell where the run is, at most ten times a second."""
        now = perf_counter()
        if not force and now - self.reported < PROGRESS_EVERY_S:
            return
        self.reported = now
        stats, before = self.model.stats(), self.before
        self.emit(
            Progress(
                run_id=self.request.run_id,
                stage=self.stage,
                tokens_done=self.done,
                tokens_total=self.total,
                layer=layer,
                layers=self.layers,
                expert_hits=stats.expert_hits - before.expert_hits,
                expert_reads=stats.expert_reads - before.expert_reads,
                bytes_read=stats.bytes_read - before.bytes_read,
            )
        )
