"""Nonsense on every HTTP route, in every file that is read: an answer in words, and never a fault of the server."""

import asyncio
import contextlib
import json
import re
import tempfile
import warnings
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.abort import AbortSignal
from backend.app import Pagoda
from backend.config_file import ConfigError, read
from backend.errors import GatewayError
from backend.sources import SourceEvent
from backend.transfer import parse
from engine.events import Generate, Token
from tests.backend.scripted import ScriptedSource, finished

QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
FIELDS = [
    "model", "text", "request_id", "messages", "role", "content", "system", "sampling", "title", "pinned", "stream",
    "stop", "seed", "temperature", "top_p", "tools", "max_tokens", "n", "prompt", "input", "selected_attempt", "schema",
    "response_format", "tool_choice", "logprobs", "thinking", "metadata", "name", "tool_calls", "type", "function",
]  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20),
    st.sampled_from(["default", "user", "auto", "../../etc/passwd", "json_schema", "\x00", "\u202e", "function"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.text(max_size=5)), inner)
    ),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)


class Brief(ScriptedSource):
    """Says a word to everything."""

    async def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        yield Token(request.run_id, 1, "Yes")
        yield finished(request.run_id, "stop", 1)


# These ask other machines, or measure this one.
ELSEWHERE = ("/api/downloads", "/api/forecast", "/api/memory", "/api/folders")
PAGODA = Pagoda(Path(tempfile.mkdtemp()), [Brief()])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the routes for unknown addresses share their name
    PATHS = PAGODA.app.openapi()["paths"]
ROUTES = sorted(
    (method.upper(), path)
    for path, operations in PATHS.items()
    for method in operations
    if not path.endswith(("/chunks", "{rest}", "/api", "/v1")) and not path.startswith(ELSEWHERE)
)


class Client:
    """Asks without a network, so that a thousand questions take seconds."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._life = PAGODA.app.router.lifespan_context(PAGODA.app)
        self._loop.run_until_complete(self._life.__aenter__())
        transport = httpx.ASGITransport(PAGODA.asgi, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._loop.run_until_complete(asyncio.wait_for(self._http.request(method, path, **more), 20))

    def close(self) -> None:
        self._loop.run_until_complete(self._life.__aexit__(None, None, None))
        self._loop.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


def asks(client: Client, method: str, path: str, ids: list[str], query: dict, body: object) -> None:
    """Sends it, and looks at the answer."""
    filled = re.sub(r"\{[^}]*\}", lambda _: quote(ids.pop() if ids else "x", safe=""), path)
    content = json.dumps(body).encode("utf-8", "replace") if not isinstance(body, bytes) else body
    answer = client.request(
        method, filled, params=query, content=content if method in ("POST", "PATCH", "PUT") else None,
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert answer.status_code < 500 or answer.status_code in (503, 507), f"{method} {filled}: {answer.text}"
    if answer.status_code >= 400 and filled.startswith(("/api", "/v1")):
        error = answer.json().get("error") or answer.json()
        assert error["message"] and "Traceback" not in answer.text


@pytest.fixture(scope="module")
def known(client: Client) -> str:
    """A conversation that is there."""
    return client.request("POST", "/api/conversations", json={}).json()["id"]


@pytest.mark.parametrize("method, path", ROUTES)
@settings(QUIET, max_examples=12)
@given(data=st.data())
def test_nonsense_is_answered_in_words_on_every_route(
    client: Client, known: str, method: str, path: str, data: st.DataObject
):
    ids = data.draw(st.lists(st.one_of(st.just(known), st.text(max_size=12)), min_size=3, max_size=3))
    query = data.draw(
        st.dictionaries(st.sampled_from(["q", "format", "after", "attempt", "limit"]), st.text(max_size=9))
    )
    body = data.draw(st.one_of(bodies, values, st.binary(max_size=40)))
    asks(client, method, path, ids, query, body)


CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
@QUIET
@given(changes=bodies)
def test_a_request_of_a_program_that_is_nearly_right_is_answered_in_words(client: Client, path: str, changes: dict):
    base = {**CHAT, "input": "Hello", "prompt": "Hello"}
    asks(client, "POST", path, [], {}, {**base, **changes})


def test_every_route_of_the_api_was_tried():
    assert len(ROUTES) >= 25 and ("POST", "/api/import") in ROUTES


@QUIET
@given(content=st.one_of(st.binary(max_size=200), values.map(lambda value: json.dumps(value).encode())))
def test_a_file_of_nonsense_is_no_import(content: bytes):
    with contextlib.suppress(GatewayError):
        assert parse(content, "default") == []


EXPORT = {
    "format": "pagoda-conversations", "version": 1, "conversations": [{
        "id": "c_1", "title": "T", "model": "default", "system": None, "sampling": {}, "pinned": False,
        "archived": False, "created_at": 1.0, "updated_at": 1.0, "messages": [
            {"id": "m_1", "role": "user", "text": "Hi", "parent": None, "chosen": True, "created_at": 1.0},
            {"id": "m_2", "role": "assistant", "parent": "m_1", "chosen": True, "created_at": 1.0, "attempts": []},
        ],
    }],
}  # fmt: skip
CHATGPT = [{
    "title": "T", "create_time": 1.0, "update_time": 1.0, "current_node": "b", "mapping": {
        "a": {"id": "a", "parent": None, "children": ["b"], "message": {
            "author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Hi"]}, "create_time": 1.0}},
        "b": {"id": "b", "parent": "a", "children": ["a"], "message": {
            "author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["Ho"]}}},
    },
}]  # fmt: skip


def changed(value: object, data: st.DataObject) -> object:
    """With one thing in it that is something else, or gone."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 5)):
        key = data.draw(st.sampled_from(sorted(value)))
        if not data.draw(st.integers(0, 5)):
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: changed(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 5)):
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], changed(value[place], data), *value[place + 1 :]]
    return data.draw(values)


@pytest.mark.parametrize("original", [EXPORT, CHATGPT], ids=["Pagoda's", "ChatGPT's"])
@settings(QUIET, max_examples=80)
@given(data=st.data())
def test_an_import_that_is_nearly_right_is_read_or_refused_in_words(
    client: Client, original: object, data: st.DataObject
):
    asks(client, "POST", "/api/import", [], {}, changed(original, data))


@settings(QUIET, max_examples=200)
@given(
    text=st.one_of(
        st.text(max_size=200),
        st.dictionaries(
            st.sampled_from(["model", "memory", "host", "port", "data", "open", "log_level", "upstream", "x"]),
            st.one_of(st.booleans(), st.integers(), st.text(max_size=9), st.lists(st.integers(), max_size=2)),
        ).map(lambda table: "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())),
    )
)
def test_a_configuration_of_nonsense_is_refused_by_line_or_read(tmp_path: Path, text: str):
    file = tmp_path / "pagoda.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ConfigError):
        read(file)
