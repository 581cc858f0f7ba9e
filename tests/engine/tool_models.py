"""Small checkpoints whose chat template knows tools, as published ones do; also with thoughts."""

import json
import os
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from engine.synth import synthesise
from engine.synth_tokenizer import tokenizer_files

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}<tool_call>\n"
    '{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
VOCABULARY = 600


def with_template(original: Path, folder: Path, template: str = TEMPLATE) -> Path:
    """The same checkpoint with another chat template."""
    folder.mkdir()
    for file in original.iterdir():
        if file.name != "tokenizer_config.json":
            os.symlink(file, folder / file.name)
    config = json.loads((original / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder


def thinking_model(folder: Path, template: str = TEMPLATE, marks: tuple[str, ...] = MARKS) -> Path:
    """A random model with tokens for thoughts and calls. Such tokens are special in some checkpoints, not in others."""
    shape = {"layers": 1, "experts": 4, "hidden": 64, "expert_hidden": 64, "top_k": 2}
    synthesise(folder, "qwen3-moe", vocab=VOCABULARY, **shape)
    files = tokenizer_files(VOCABULARY - len(marks))
    tokenizer = Tokenizer.from_str(files["tokenizer.json"])
    tokenizer.add_tokens([AddedToken(mark, special=mark.startswith("<t"), normalized=False) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads(files["tokenizer_config.json"])
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder
