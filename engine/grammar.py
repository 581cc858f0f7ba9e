"""Which tokens may come next so that a text matches a JSON schema: llguidance on a model's own tokenizer.

A schema with a keyword that cannot be held to is refused by that keyword, never followed in part.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import llguidance.hf
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.errors import EngineError, Unsupported

# A space, or a new line and its indent; not endless space, which small models fall into.
_SPACE = r"\x20|\x0A[\x20\x09]{0,40}"
# Set here, so that a schema cannot ask to be followed less exactly.
_STRICTLY = {"whitespace_pattern": _SPACE, "lenient": False, "coerce_one_of": False}


def grammar(schema: Mapping[str, Any], param: str) -> str:
    """The grammar of the JSON texts that match the schema. Raises Unsupported naming `param`."""
    words = "Leave that part out, or say it in the description."
    try:
        found = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_STRICTLY)  # type: ignore[arg-type]
        wrong, said = LLMatcher.validate_grammar_with_warnings(found)
    except ValueError as error:
        wrong, said = True, [str(error)]
    if wrong:
        raise Unsupported(f"{param}: a reply cannot be held to this JSON schema: {said[0]}. {words}", param)
    return found


def within(schema: Mapping[str, Any]) -> str:
    """The JSON texts that match a schema that `grammar` has taken, as a part of a larger grammar."""
    return f"%json {json.dumps({**schema, 'x-guidance': _STRICTLY})}"


class Grammar:
    """Where one text stands in its grammar."""

    def __init__(self, tokenizer: TokenizerWrapper, grammar: str, param: str) -> None:
        try:
            vocabulary = _vocabulary(tokenizer)
        except ValueError as error:
            words = "this model's tokenizer is of a kind that cannot be held to JSON. Leave it out."
            raise Unsupported(f"{param}: {words}", param) from error
        self._matcher = LLMatcher(vocabulary, grammar, log_level=0)
        self._sound()

    def allowed(self, size: int) -> np.ndarray:
        """Which of `size` tokens may come next: bool [size]."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._sound()
        found = np.zeros(size, bool)
        found[: min(size, len(bits))] = bits[:size]
        return found

    def take(self, token: int) -> None:
        """That token came."""
        self._matcher.consume_token(token)
        self._sound()

    @property
    def over(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return self._matcher.is_stopped()

    def _sound(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"The reply could not be held to its JSON schema: {self._matcher.get_error()}")


@lru_cache(maxsize=1)  # it takes about a second
def _vocabulary(tokenizer: TokenizerWrapper) -> LLTokenizer:
    return llguidance.hf.from_tokenizer(tokenizer._tokenizer, eos_token=sorted(tokenizer.eos_token_ids))
