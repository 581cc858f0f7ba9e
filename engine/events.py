"""What crosses the pipe between the engine's child process and its supervisor.

Commands go down, events come up, each one frozen dataclass, each one line of JSON.
"""

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

# Beyond so many replies that are made at once, each gets too little of the machine.
REPLIES_AT_ONCE = 8


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `None` means: what the model's generation_config.json says, else mlx-lm's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()  # added to the logits of these tokens
    logprobs: int | None = None  # tell the log probability of each token, and of so many of the likeliest


# --- commands: supervisor to child -------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Load a model. `model` is "default", a folder, or a hub id; `memory_bytes` None means "auto". `draft` is a smaller
    one, a folder or a hub id, that guesses what it will say; with other tokens it cannot, and then loading fails where
    it was meant for this model (`draft_must`), else there is none."""

    model: str
    data_dir: str
    memory_bytes: int | None = None
    draft: str | None = None
    draft_must: bool = True


@dataclass(frozen=True)
class Generate:
    """Run one reply.

    `messages` are {"role", "content"} dicts for the chat template, with tool calls as the OpenAI API writes them. For a
    reply that goes on (Continue), `prefix_text` is what is on screen of it and `prefix_tokens` the ids that this model
    sampled for it, where they are known: generation goes on right after them, and only what is not on screen is sent.
    `template` are variables for the chat template (reasoning_effort, enable_thinking, ...); one that the template does
    not know fails the run. Where `raw` is set it is the whole prompt, without a template.

    `tools` are functions in OpenAI's shape, `tool_choice` is auto, required, or one's name; without `parallel_calls`
    the reply ends after one. `schema` is a JSON schema that the answer must match. `apart`: tell thoughts and calls
    apart from the answer. What the model cannot honour fails the run, named. `count_only`: Finished with the number of
    tokens of the prompt, and nothing else. `earlier` are the tokens of other versions of the same reply: what they say
    may be said again.
    """

    run_id: str
    messages: tuple[dict[str, Any], ...]
    sampling: Sampling = field(default_factory=Sampling)
    prefix_tokens: tuple[int, ...] = ()
    prefix_text: str = ""
    template: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel_calls: bool = True
    schema: dict[str, Any] | None = None
    apart: bool = False
    count_only: bool = False
    earlier: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Warm:
    """A person looks at a conversation: make ready what is known of these messages, while nobody asks for anything."""

    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Abort:
    """Stop a run inside the current layer."""

    run_id: str


@dataclass(frozen=True)
class Shutdown:
    """Leave in an orderly way."""


# --- events: child to supervisor ---------------------------------------------------------------


@dataclass(frozen=True)
class Loading:
    """Progress before a model is ready. `stage`: download | convert | open | compile | trunk | experts | warm-up.

    `unit` of done and total: bytes or steps.
    """

    stage: str
    done: int
    total: int
    unit: str = "bytes"


@dataclass(frozen=True)
class Loaded:
    """The model is ready. Sizes in bytes; `paged` is False when everything fits or nothing is an expert. `draft` is the
    model that guesses for it, if one does."""

    name: str
    path: str
    device: str
    layers: int
    experts_per_layer: int
    top_k: int
    trunk_bytes: int
    expert_bytes: int
    slot_bytes: int
    budget_bytes: int
    context_tokens: int
    paged: bool
    draft: str | None = None


@dataclass(frozen=True)
class LoadFailed:
    """`kind` names the error class; `message` says what happened, why, and what to do next."""

    kind: str
    message: str


@dataclass(frozen=True)
class Progress:
    """Where a run is, at most some ten times a second, sent between layers.

    `stage`: prefill | decode. Counters are cumulative over the run. In prefill `tokens_done/tokens_total` are
    prompt tokens; in decode `tokens_done` is the number of tokens delivered and `tokens_total` the limit.
    """

    run_id: str
    stage: str
    tokens_done: int
    tokens_total: int
    layer: int
    layers: int
    expert_hits: int
    expert_reads: int
    bytes_read: int


@dataclass(frozen=True)
class Token:
    """One token, sent the moment it is sampled. `text` may be empty while a character is incomplete.

    `logprobs`, where asked for: (id, text, log probability) of the token itself, then of the likeliest ones. `thought`
    and `calls` (engine/speech.py) stand apart from `text` only where the request asks for that.
    """

    run_id: str
    token: int
    text: str
    logprobs: tuple[tuple[int, str, float], ...] = ()
    thought: str = ""
    calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Finished:
    """A run came to its proper end. `reason`: stop | length | aborted. `text` is what the detokenizer still held.

    Times in seconds: `ttft_s` from the start of the run to the first token; `prefill_s` of it in the forward
    pass; `tpot_s` the mean and `tpot_s_p50` the median time of each later token; `disk_s` waited for reads. Of the
    prompt, `cached_tokens` were known from before and not read again. `stop` is the stop string that ended it;
    `thought` and `calls` as in Token; `reasoning_tokens` are those of thoughts and their marks, where they are told
    apart. Of all its passes, `router_s` waited for what routers chose and `compute_s` was neither that nor `disk_s`.
    `larger` tells what more memory would buy: (budget in bytes, tokens/s). Of its tokens, `guessed` were guessed and
    tried before they were known, and `guessed_right` of those came true.
    """

    run_id: str
    reason: str
    text: str
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    tpot_s: float
    tpot_s_p50: float
    disk_s: float
    expert_hits: int
    expert_reads: int
    bytes_read: int
    context_full: bool = False
    cached_tokens: int = 0
    stop: str | None = None
    thought: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    router_s: float = 0.0
    compute_s: float = 0.0
    larger: tuple[tuple[int, float], ...] = ()
    reasoning_tokens: int | None = None
    guessed: int = 0
    guessed_right: int = 0


@dataclass(frozen=True)
class RunFailed:
    """A run could not go on. `kind` names the error class; `message` is for a person; `param` is the field of the
    request that cannot be honoured, where it is about one."""

    run_id: str
    kind: str
    message: str
    param: str | None = None


Command = Load | Generate | Warm | Abort | Shutdown
Event = Loading | Loaded | LoadFailed | Progress | Token | Finished | RunFailed

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Load, Generate, Warm, Abort, Shutdown, Loading, Loaded, LoadFailed, Progress, Token, Finished, RunFailed,
    )
}  # fmt: skip


def encode(message: Command | Event) -> bytes:
    """One line of JSON, ending in a newline. JSON escapes every newline inside, so a line is a message."""
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Command | Event:
    """The message that `encode` wrote. Raises ValueError for anything else."""
    try:
        raw: dict[str, Any] = json.loads(line)
        cls = _TYPES[raw.pop("type")]
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a message of the engine's pipe: {line[:200]!r}") from error
    known = {f.name: f for f in fields(cls)}
    if unknown := set(raw) - set(known):
        raise ValueError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
    values = {name: _restore(known[name].default_factory, value) for name, value in raw.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"incomplete {cls.__name__}: {error}") from error


def decode_command(line: bytes) -> Command:
    """Like `decode`, for the child's side."""
    message = decode(line)
    if not isinstance(message, Command):
        raise ValueError(f"{type(message).__name__} is no command")
    return message


def decode_event(line: bytes) -> Event:
    """Like `decode`, for the supervisor's side."""
    message = decode(line)
    if not isinstance(message, Event):
        raise ValueError(f"{type(message).__name__} is no event")
    return message


def _restore(factory: Any, value: Any) -> Any:
    if isinstance(factory, type) and is_dataclass(factory) and isinstance(value, dict):
        return factory(**{key: _restore(None, item) for key, item in value.items()})
    return tuple(value) if isinstance(value, list) else value
