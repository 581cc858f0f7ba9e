"""From token ids to text that can be shown: whole characters only, and nothing of a stop string."""

from mlx_lm.tokenizer_utils import TokenizerWrapper


class TextStream:
    """The text of one reply as its tokens come.

    `prefix_tokens` and `prefix_text` are what was already shown of a reply that goes on; it is not given again.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        stop: tuple[str, ...] = (),
        prefix_tokens: tuple[int, ...] = (),
        prefix_text: str = "",
    ):
        self._detokenizer = tokenizer.detokenizer
        for token in prefix_tokens:
            self._detokenizer.add_token(token)
        text = self._detokenizer.text
        # A space that the detokenizer still holds back may have been shown at the end of the earlier run.
        already_shown = prefix_text if prefix_text.startswith(text) else text
        self._shown = len(already_shown)
        self._stop = tuple(s for s in stop if s)
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that can be shown now that `token` is known; sets `stopped` when a stop string is complete."""
        self._detokenizer.add_token(token)
        return self._release(self._detokenizer.text, final=False)

    def finish(self, whole: bool = True) -> str:
        """What was held back. A character that never became whole is left out."""
        if self.stopped:
            return ""
        if whole:
            self._detokenizer.finalize()
        return self._release(self._detokenizer.text.rstrip("\ufffd"), final=True)

    def _release(self, text: str, final: bool) -> str:
        fresh = text[self._shown :]
        ends = [at for s in self._stop if (at := fresh.find(s)) >= 0]
        if ends:
            self.stopped = True
            fresh = fresh[: min(ends)]
        elif not final:
            fresh = fresh[: len(fresh) - self._held(fresh)]
        self._shown += len(fresh)
        return fresh

    def _held(self, fresh: str) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for length in range(min(longest, len(fresh)), 0, -1):
            if any(s.startswith(fresh[-length:]) for s in self._stop):
                return length
        return 0
