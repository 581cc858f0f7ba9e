"""Conversations as files: Markdown to read, JSON to read back (backend/transfer.py)."""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

FORMAT = "pagoda-conversations"
VERSION = 1


def as_json(conversations: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The whole of each, as in `Library.whole`: every branch, every version, what each reply took. In pieces."""
    yield f'{{"format": "{FORMAT}", "version": {VERSION}, "conversations": ['
    for number, conversation in enumerate(conversations):
        yield (",\n" if number else "\n") + json.dumps(conversation, ensure_ascii=False)
    yield "\n]}\n"


def as_markdown(conversation: dict[str, Any]) -> str:
    """The branch on screen, as in `Gateway.conversation`, each reply in its selected version."""
    lines = [f"# {_one_line(conversation['title'])}", ""]
    lines += [f"*{conversation['model']} · {_day(conversation['created_at'])}*", ""]
    if conversation["system"]:
        lines += ["> " + line for line in conversation["system"].splitlines()] + [""]
    for message in conversation["messages"]:
        lines += ["## You" if message["role"] == "user" else "## Reply", "", message["text"].strip() or "*(empty)*", ""]
    return "\n".join(lines)


def file_name(title: str, ending: str) -> str:
    """A name that every file system takes."""
    plain = re.sub(r'[\\/:*?"<>|\x00-\x1f.]+', " ", title)
    return f"{' '.join(plain.split())[:60].strip() or 'conversation'}.{ending}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
