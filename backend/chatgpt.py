"""A conversation of ChatGPT's conversations.json in the shape of Pagoda's own export.

It is a tree there; the branch that was on screen is taken. What has no text (tools, images) is left out.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from backend.errors import Invalid
from backend.wording import NEW_TITLE, title_of

Said = tuple[str, str, float]  # who, what, when


def looks_like_it(content: Any) -> bool:
    """Whether this parsed JSON is such a file."""
    return isinstance(content, list) and all(isinstance(each, dict) and "mapping" in each for each in content)


def conversation(content: dict[str, Any]) -> dict[str, Any]:
    """One conversation. Raises Invalid when it has no messages where they should be."""
    messages: list[dict[str, Any]] = []

    def add(role: str, text: str, when: float, state: str = "complete") -> None:
        message = {"id": f"m{len(messages)}", "role": role, "created_at": when}
        message["parent"] = messages[-1]["id"] if messages else None
        version = {"id": "a", "text": text, "state": state, "created_at": when}
        messages.append(message | ({"text": text} if role == "user" else {"attempts": [version]}))

    for role, text, when in _merged(_on_screen(content)):
        last = messages[-1]["role"] if messages else "assistant"
        if role == last == "user":
            add("assistant", "", when, "interrupted")  # the place of a reply that never came
        if role == last == "assistant":
            add("user", "…", when)  # a greeting that nobody asked for
        add(role, text, when)
    if messages and messages[-1]["role"] == "user":
        add("assistant", "", messages[-1]["created_at"], "interrupted")
    title, id = content.get("title"), content.get("conversation_id") or content.get("id")
    named = isinstance(title, str) and title.strip()
    return {
        "id": f"chatgpt {id if isinstance(id, str) else (title, content.get('create_time'))}"[:200],
        "title": title[:200] if isinstance(title, str) and named else _first_line(messages),
        "created_at": _moment(content.get("create_time")),
        "updated_at": _moment(content.get("update_time")),
        "messages": messages,
    }


def _first_line(messages: list[dict[str, Any]]) -> str:
    return title_of(messages[0]["text"]) if messages else NEW_TITLE


def _on_screen(content: dict[str, Any]) -> Iterator[Said]:
    mapping = content.get("mapping")
    if not isinstance(mapping, dict):
        raise Invalid("A conversation in this file has no messages where they should be, so nothing was imported.")
    id, way, seen = content.get("current_node"), [], set()
    if not isinstance(id, str) or id not in mapping:  # old exports name none: the newest end of the tree
        id = next((id for id, node in reversed(mapping.items()) if not _dict(node).get("children")), None)
    while isinstance(id, str) and id in mapping and id not in seen:
        seen.add(id)
        node = _dict(mapping[id])
        way.append(_said(_dict(node.get("message"))))
        id = node.get("parent")
    return (said for said in reversed(way) if said is not None)


def _said(message: dict[str, Any]) -> Said | None:
    role, content = _dict(message.get("author")).get("role"), _dict(message.get("content"))
    if role not in ("user", "assistant") or _dict(message.get("metadata")).get("is_visually_hidden_from_conversation"):
        return None
    if content.get("content_type") not in ("text", "multimodal_text"):
        return None
    parts = content.get("parts")
    texts = [part for part in parts if isinstance(part, str) and part.strip()] if isinstance(parts, list) else []
    return (role, "\n\n".join(texts), _moment(message.get("create_time"))) if texts else None


def _merged(line: Iterable[Said]) -> Iterator[Said]:
    """A reply in several pieces, before and after a tool, becomes one."""
    last: Said | None = None
    for role, text, when in line:
        if last is not None and last[0] == role == "assistant":
            last = (role, f"{last[1]}\n\n{text}", last[2])
            continue
        if last is not None:
            yield last
        last = (role, text, when)
    if last is not None:
        yield last


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _moment(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and 0 <= value < 1e11 else 0.0
