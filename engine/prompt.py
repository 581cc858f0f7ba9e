"""From the messages of a request to the model's tokens, and where in them the turns end."""

from itertools import takewhile
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine import harmony
from engine.errors import PromptError
from engine.events import Generate
from engine.loader import PagedModel
from engine.patience import TookTooLong, at_most
from engine.template import ends_in_thought, template_variables
from engine.tools import check_tools, for_template

TEMPLATE_S = 60.0  # with tokenizing: a million characters on a busy machine take a tenth of it


def prompt_tokens(model: PagedModel, request: Generate) -> list[int]:
    """The ids of the conversation, without the part of the reply that already exists. Raises PromptError."""
    tokenizer = model.tokenizer
    if request.raw is not None:
        return [int(i) for i in tokenizer.encode(request.raw)]
    check_tools(tokenizer, request)
    variables = template_variables(tokenizer, request.template)
    try:
        with at_most(TEMPLATE_S):
            prompt = _rendered(tokenizer, request, request.messages, True, variables)
    except TookTooLong:
        raise PromptError(
            f"The model's chat template did not come to an end within {TEMPLATE_S:.0f} s, so it was stopped. Use "
            "another model, or mend the template in its folder."
        ) from None
    except Exception as error:
        raise PromptError(f"The model's chat template does not accept this conversation: {error}") from error
    return [*prompt, *_end_of_thought(tokenizer, request, prompt)]


def _end_of_thought(tokenizer: TokenizerWrapper, request: Generate, prompt: list[int]) -> list[int]:
    """Where a client begins the answer and the template a thought, that is over; else the answer would be part of it.
    What this model wrote itself goes on as it is."""
    given = request.apart and request.prefix_text and not request.prefix_tokens and not harmony.speaks(tokenizer)
    if not given or not ends_in_thought(tokenizer, prompt) or str(tokenizer.think_end) in request.prefix_text:
        return []
    return [int(i) for i in tokenizer.encode(f"\n{tokenizer.think_end}\n\n", add_special_tokens=False)]


def boundaries(tokenizer: TokenizerWrapper, request: Generate, prompt: list[int]) -> list[int]:
    """Lengths of the prompt after which another prompt may differ: behind the system message, and before the words
    that ask for the reply. A template that takes no such part of a conversation gives none."""
    if request.raw is not None:
        return []
    variables = template_variables(tokenizer, request.template)
    system = tuple(takewhile(lambda message: message["role"] == "system", request.messages))
    found = set()
    for messages in (system, request.messages):
        if not messages:
            continue
        try:
            with at_most(TEMPLATE_S):
                part = _rendered(tokenizer, request, messages, False, variables)
        except (Exception, TookTooLong):
            continue
        found.add(next((i for i, (a, b) in enumerate(zip(part, prompt, strict=False)) if a != b), len(part)))
    return sorted(found - {0})


def _rendered(
    tokenizer: TokenizerWrapper,
    request: Generate,
    messages: tuple[dict[str, Any], ...],
    asks: bool,
    variables: dict[str, Any],
) -> list[int]:
    readable = for_template(messages)
    if harmony.speaks(tokenizer):
        readable = harmony.for_template(readable)
    if tokenizer.chat_template is None and not getattr(tokenizer, "has_chat_template", False):
        return [int(i) for i in tokenizer.encode("\n\n".join(m["content"] for m in readable))]
    ids = tokenizer.apply_chat_template(
        readable, tools=list(request.tools) or None, add_generation_prompt=asks, **variables
    )
    return [int(i) for i in ids]
