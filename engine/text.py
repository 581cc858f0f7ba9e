"""From token ids to text that can be shown: whole characters only, and nothing of a stop string."""

from collections.abc import Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper


def reply_tokens(
    tokenizer: TokenizerWrapper, tokens: tuple[int, ...], shown: str, stop: tuple[str, ...]
) -> tuple[int, ...]:
    """The ids that a reply goes on from when `shown` is on screen and `tokens` were sampled for it.

    These are all of `tokens` as long as they spell what was shown, perhaps with an end that was still held back. Where
    they don't (the reply was cut before a stop string, or there are none: another model or a client wrote it), those
    that were shown whole, and the rest tokenised anew.
    """
    text = spelled(tokenizer, tokens)
    stop_lies_beyond = any(s in text[max(len(shown) - len(s) + 1, 0) :] for s in stop if s)
    if tokens and (shown.startswith(text) or (text.startswith(shown) and not stop_lies_beyond)):
        return tokens
    keep = len(tokens)
    while keep and not shown.startswith(spelled(tokenizer, tokens[:keep])):
        keep -= 1
    rest = shown[len(spelled(tokenizer, tokens[:keep])) :]
    return (*tokens[:keep], *tokenizer.encode(rest, add_special_tokens=False))


def spelled(tokenizer: TokenizerWrapper, tokens: tuple[int, ...]) -> str:
    """The text of these tokens, as it streams: without what the detokenizer still holds back."""
    detokenizer = tokenizer.detokenizer
    for token in tokens:
        detokenizer.add_token(token)
    return detokenizer.text


class StopFilter:
    """Lets text through until a stop string comes, and nothing of that."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._held = ""
        self.stopped: str | None = None  # the stop string that came

    def add(self, text: str) -> str:
        """What is certain to be no part of a stop string."""
        if self.stopped is not None:
            return ""
        fresh, self._held = self._held + text, ""
        ends = [(at, s) for s in self._stop if (at := fresh.find(s)) >= 0]
        if ends:
            at, self.stopped = min(ends)
            return fresh[:at]
        held = self._may_begin(fresh)
        fresh, self._held = fresh[: len(fresh) - held], fresh[len(fresh) - held :]
        return fresh

    def finish(self) -> str:
        """What was held back: no stop string comes any more."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, fresh: str) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for length in range(min(longest, len(fresh)), 0, -1):
            if any(s.startswith(fresh[-length:]) for s in self._stop):
                return length
        return 0


class TextStream:
    """The text of one reply as its tokens come.

    `prefix_tokens` are those that a reply goes on from, `shown` what is already on screen; it is not given again.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        stop: tuple[str, ...] = (),
        prefix_tokens: tuple[int, ...] = (),
        shown: str = "",
    ):
        self._detokenizer = tokenizer.detokenizer
        for token in prefix_tokens:
            self._detokenizer.add_token(token)
        # Less may have been shown than the tokens spell (what might have become a stop string was held back), or more
        # (a space that this detokenizer still holds back).
        self._taken = len(shown)
        self._stops = StopFilter(stop)

    @property
    def stopped(self) -> str | None:
        """The stop string that came."""
        return self._stops.stopped

    def add(self, token: int) -> str:
        """The text that can be shown now that `token` is known; `stopped` then says if a stop string is complete."""
        self._detokenizer.add_token(token)
        return self._take(self._detokenizer.text)

    def finish(self, whole: bool = True) -> str:
        """What was held back. A character that never became whole is left out."""
        if self.stopped is not None:
            return ""
        if whole:
            self._detokenizer.finalize()
        return self._take(self._detokenizer.text.rstrip("\ufffd")) + self._stops.finish()

    def _take(self, text: str) -> str:
        fresh, self._taken = text[self._taken :], max(self._taken, len(text))
        return self._stops.add(fresh)
