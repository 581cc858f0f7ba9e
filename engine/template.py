"""Variables for a model's chat template: only those that it reads, so that no wish is dropped in silence."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.errors import Unsupported

# Some templates know no effort but a switch for thinking at all.
_EFFORT, _SWITCH = "reasoning_effort", "enable_thinking"
_HARDLY = ("none", "minimal")


def template_variables(tokenizer: TokenizerWrapper, wishes: Mapping[str, Any]) -> dict[str, Any]:
    """The wishes as the template knows them. Raises Unsupported naming one that it does not know."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    found: dict[str, Any] = {}
    for name, value in wishes.items():
        if _reads(template, name):
            found[name] = value
        elif name == _EFFORT and _reads(template, _SWITCH):
            found[_SWITCH] = value not in _HARDLY
        elif not tokenizer.has_thinking and ((name == _EFFORT and value in _HARDLY) or (name == _SWITCH and not value)):
            continue  # it does not think anyway
        else:
            raise Unsupported(f"{name}: the chat template of this model knows no such thing. Leave it out.", name)
    return found


def ends_in_thought(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> bool:
    """Whether the prompt has begun a thought for the model to go on with."""
    if not tokenizer.has_thinking:
        return False
    return tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)


def _reads(template: str, name: str) -> bool:
    return name.isidentifier() and re.search(rf"\b{name}\b", template) is not None
