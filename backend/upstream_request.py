"""What an upstream is asked: the request of a conversation in the fields of the OpenAI API."""

import re
from typing import Any

from engine.events import Generate

_SAME = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens")
# llama.cpp knows the repetition penalty by a name of its own.
_REPETITION = {"llamacpp": "repeat_penalty"}
_GO_ON = {owner: {"continue_final_message": True, "add_generation_prompt": False} for owner in ("vllm", "pagoda")}
_THOUGHT = re.compile(r"\A\s*<think>.*?(</think>\s*|\Z)", re.DOTALL)


def body_of(request: Generate, owner: str) -> dict[str, Any]:
    """The body without `model` and `stream`. Only what was asked for goes out: strict servers refuse the rest."""
    sampling = request.sampling
    body: dict[str, Any] = {"messages": [_without_thought(message) for message in request.messages]}
    if begun := _THOUGHT.sub("", request.prefix_text):
        body["messages"].append({"role": "assistant", "content": begun})
        # Others go on with a last message of the assistant by themselves, or refuse it.
        body |= _GO_ON.get(owner, {})
    body |= {name: value for name in _SAME if (value := getattr(sampling, name)) is not None}
    if sampling.repetition_penalty is not None:
        body[_REPETITION.get(owner, "repetition_penalty")] = sampling.repetition_penalty
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body | _wishes(request) | {"stream_options": {"include_usage": True}} | _progress(owner)


def _wishes(request: Generate) -> dict[str, Any]:
    """What clients of the other APIs ask for, in the fields of a chat completion."""
    found: dict[str, Any] = {}
    if request.tools:
        named = {"type": "function", "function": {"name": request.tool_choice}}
        found |= {"tools": list(request.tools)}
        if request.tool_choice != "auto":
            found["tool_choice"] = "required" if request.tool_choice == "required" else named
        if not request.parallel_calls:
            found["parallel_tool_calls"] = False
    if request.schema is not None:
        schema = {"name": "answer", "schema": request.schema, "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    template = dict(request.template)
    if effort := template.pop("reasoning_effort", None):
        found["reasoning_effort"] = effort
    return found | ({"chat_template_kwargs": template} if template else {})


def forwarded(body: dict[str, Any], owner: str) -> dict[str, Any]:
    """The body of an API client, with the counts and the progress that we want to know ourselves."""
    kept = {key: value for key, value in body.items() if key != "pagoda"}
    return kept | {"stream_options": {"include_usage": True}} | _progress(owner)


def _progress(owner: str) -> dict[str, Any]:
    if owner == "llamacpp":
        return {"return_progress": True}
    return {"pagoda": {"progress": True}} if owner == "pagoda" else {}


def without_refused(body: dict[str, Any], refused: set[str]) -> dict[str, Any]:
    """The body without what this server does not take. Newer models of OpenAI know max_tokens by its longer name."""
    kept = {key: value for key, value in body.items() if key not in refused}
    if "max_tokens" in refused and "max_tokens" in body:
        kept["max_completion_tokens"] = body["max_tokens"]
    return kept


def _without_thought(message: dict[str, Any]) -> dict[str, Any]:
    """Models are not given their earlier thoughts to read."""
    kept = {key: value for key, value in message.items() if key != "reasoning_content"}
    return kept if message["role"] != "assistant" else {**kept, "content": _THOUGHT.sub("", message["content"])}
