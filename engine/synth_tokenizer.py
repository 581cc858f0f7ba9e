"""A tokenizer for random checkpoints: byte-level BPE trained on Python's own sources, with a plain chat template.

The same Python gives the same tokenizer; nothing is downloaded or cached.
"""

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT_BYTES_PER_TOKEN = 250  # enough text that most of the wanted merges are found


def tokenizer_files(vocab: int) -> dict[str, str]:
    """tokenizer.json and tokenizer_config.json with exactly `vocab` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sources(vocab * TEXT_BYTES_PER_TOKEN), trainer)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    known = content["model"]["vocab"]
    # A random model emits every id, so every id needs a text, also where the sources gave too few merges.
    for token in range(len(known), vocab):
        known[f"<unused_{token}>"] = token
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": json.dumps(content, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, indent=1),
    }


def _sources(budget: int) -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        budget -= len(text)
        if budget <= 0:
            return
