"""Pagoda's own HTTP API: the gateway's methods as JSON, and the chunks of a conversation as server-sent events."""

import logging
import sqlite3
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from backend import pace
from backend.errors import GatewayError, Invalid, NotFound
from backend.event_stream import respond
from backend.gateway import Gateway
from backend.live import attempt_events, conversation_events
from backend.refusals import error_body
from backend.words_page import not_found

log = logging.getLogger(__name__)

API_PATHS = ("/api", "/v1", "/healthz")
BEYOND = 2**53  # no attempt has as many chunks, and SQLite can count to it

RequestId = Annotated[str, Field(min_length=1, max_length=200)]


class Body(BaseModel):
    """A field that we do not know is a mistake worth telling."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewConversation(Body):
    model: str | None = None
    system: str | None = None
    sampling: dict[str, Any] | None = None
    request_id: RequestId | None = None


class ConversationChange(Body):
    title: str | None = None
    model: str | None = None
    system: str | None = None
    sampling: dict[str, Any] | None = None
    pinned: bool = False
    archived: bool = False


class NewMessage(Body):
    request_id: RequestId
    text: str


class NewVersion(Body):
    request_id: RequestId | None = None


class Selection(Body):
    selected_attempt: str


class Nothing(Body):
    pass


def routes(gateway: Gateway) -> APIRouter:
    """All routes under /api, and /healthz."""
    api = APIRouter()

    @api.get("/healthz")
    async def healthz() -> dict[str, Any]:
        status = gateway.model_status()
        return {"status": "ok", "model": {key: status[key] for key in ("name", "state", "detail")}}

    @api.get("/api/conversations")
    async def conversations() -> list[dict[str, Any]]:
        return gateway.conversations()

    @api.post("/api/conversations")
    async def create(body: NewConversation | None = None) -> dict[str, Any]:
        return gateway.create_conversation(**(body or NewConversation()).model_dump())

    @api.get("/api/search")
    async def search(q: Annotated[str, Query(max_length=500)]) -> dict[str, Any]:
        return {"query": q, "hits": await gateway.search(q)}

    @api.get("/api/conversations/{id}")
    async def conversation(id: str) -> dict[str, Any]:
        return gateway.conversation(id)

    @api.patch("/api/conversations/{id}")
    async def change(id: str, body: ConversationChange) -> dict[str, Any]:
        return gateway.update_conversation(id, **body.model_dump(exclude_unset=True))

    @api.delete("/api/conversations/{id}")
    async def delete(id: str) -> dict[str, Any]:
        gateway.delete_conversation(id)
        return {"id": id, "deleted": True}

    @api.post("/api/conversations/{id}/restore")
    async def restore(id: str, body: Nothing | None = None) -> dict[str, Any]:
        return gateway.restore_conversation(id)

    @api.post("/api/conversations/{id}/read")
    async def read(id: str, body: Nothing | None = None) -> dict[str, Any]:
        gateway.mark_read(id)
        return {"id": id, "unread": False}

    @api.post("/api/conversations/{id}/messages")
    async def send(id: str, body: NewMessage) -> dict[str, Any]:
        return {"conversation_id": id, **asdict(gateway.send(id, body.request_id, body.text))}

    @api.post("/api/messages/{id}/edit")
    async def edit(id: str, body: NewMessage) -> dict[str, Any]:
        return asdict(gateway.edit(id, body.request_id, body.text))

    @api.post("/api/messages/{id}/show")
    async def show(id: str, body: Nothing | None = None) -> dict[str, Any]:
        gateway.show_branch(id)
        return {"message_id": id}

    @api.delete("/api/messages/{id}")
    async def delete_turn(id: str) -> dict[str, Any]:
        gateway.delete_turn(id)
        return {"message_id": id, "deleted": True}

    @api.post("/api/messages/{id}/restore")
    async def restore_turn(id: str, body: Nothing | None = None) -> dict[str, Any]:
        gateway.restore_turn(id)
        return {"message_id": id, "deleted": False}

    @api.post("/api/messages/{id}/regenerate")
    async def regenerate(id: str, body: NewVersion | None = None) -> dict[str, Any]:
        return {"message_id": id, "attempt_id": gateway.regenerate(id, body.request_id if body else None)}

    @api.post("/api/messages/{id}/continue")
    async def continue_(id: str, body: NewVersion | None = None) -> dict[str, Any]:
        return {"message_id": id, "attempt_id": gateway.continue_(id, body.request_id if body else None)}

    @api.patch("/api/messages/{id}")
    async def select(id: str, body: Selection) -> dict[str, Any]:
        gateway.select_attempt(id, body.selected_attempt)
        return {"message_id": id, "selected_attempt": body.selected_attempt}

    @api.post("/api/attempts/{id}/stop")
    async def stop(id: str, body: Nothing | None = None) -> dict[str, Any]:
        gateway.stop(id)
        return {"attempt_id": id}

    @api.get("/api/attempts/{id}/course")
    async def course(id: str) -> list[dict[str, Any]]:
        return pace.course(gateway.chunks(id))

    @api.get("/api/models")
    async def models() -> dict[str, Any]:
        return {"default": gateway.models()[0], "models": await gateway.model_choices()}

    @api.get("/api/model")
    async def model() -> dict[str, Any]:
        return gateway.model_status()

    @api.post("/api/model/retry")
    async def retry(body: Nothing | None = None) -> dict[str, Any]:
        gateway.retry_model()
        return gateway.model_status()

    @api.get("/api/conversations/{id}/chunks")
    async def chunks(
        id: str,
        after: Annotated[int | None, Query(ge=-1, le=BEYOND)] = None,
        attempt: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        gateway.must_know(id)  # 404 before the stream begins
        if attempt is None:
            if after is not None:
                raise Invalid("`after` counts the chunks of one attempt: name it with `attempt`.")
            return respond(conversation_events(gateway, id))
        if gateway.place_of(attempt)[0] != id:
            raise NotFound("This attempt belongs to another conversation.")
        return respond(
            attempt_events(gateway, attempt, _resume(last_event_id, attempt, -1 if after is None else after))
        )

    return api


def _resume(last_event_id: str | None, attempt: str, after: int) -> int:
    """Where an EventSource that reconnects by itself goes on: after the last id it saw, if it is of this attempt."""
    seen, _, seq = (last_event_id or "").rpartition(":")
    if seen != attempt or not (seq.isascii() and seq.isdigit()):
        return after
    return max(after, int(seq)) if len(seq) < len(str(BEYOND)) else BEYOND


def unknown_paths() -> APIRouter:
    """What no other route under /api and /v1 took is a JSON 404, never the page. Include it after all of them."""
    api = APIRouter()

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]

    @api.api_route("/api", methods=methods)
    @api.api_route("/v1", methods=methods)
    @api.api_route("/api/{rest:path}", methods=methods)
    @api.api_route("/v1/{rest:path}", methods=methods)
    async def unknown(request: Request) -> None:
        raise NotFound(f"There is no {request.method} {request.url.path} here.")

    return api


# Not UTF-8, not JSON, nested deeper than Python reads, or a number of more digits than it takes.
_NO_JSON = "The body of this request cannot be read: it is not JSON, or far too deep or too long in one of its values."


def _unreadable(request: Request, words: str = _NO_JSON) -> JSONResponse:
    return JSONResponse(error_body(request.url.path, "invalid_request", words, status=400), 400)


def install_errors(app: FastAPI) -> None:
    """Every error as JSON with words; a traceback goes to the log only."""

    @app.exception_handler(GatewayError)
    async def of_the_gateway(request: Request, error: GatewayError) -> JSONResponse:
        log.info("%s %s: %d, %s", request.method, request.url.path, error.status, error.message)
        headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
        body = error_body(request.url.path, error.kind, error.message, error.param, error.status)
        return JSONResponse(body, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def of_the_body(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        if first["type"] == "json_invalid":
            return _unreadable(request)
        if not where and first["type"] in ("dict_type", "model_attributes_type", "missing"):
            return _unreadable(request, "The body of this request is a JSON object, in braces.")
        words = f"{where}: {first['msg']}" if where else str(first["msg"])
        return JSONResponse(error_body(request.url.path, "invalid_request", words, where or None, 400), 400)

    @app.exception_handler(HTTPException)
    async def of_the_server(request: Request, error: HTTPException) -> Response:
        path, status = request.url.path, error.status_code
        if status in (404, 405):
            if not path.startswith(API_PATHS):
                return await not_found(request, error)
            words = f"There is no {request.method} {path} here."
            return JSONResponse(error_body(path, "not_found", words, status=404), 404)
        if status == 400:
            return _unreadable(request)
        return JSONResponse(error_body(path, "http_error", str(error.detail), status=status), status, error.headers)

    @app.exception_handler(UnicodeDecodeError)  # SQLite's words quoted bytes that were damaged
    @app.exception_handler(sqlite3.DatabaseError)
    async def of_the_database(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s: %s", request.method, request.url.path, error)
        words = (
            f"This could not be read from pagoda.db in the data folder ({error}). The file may be damaged: end Pagoda, "
            "and put a backup in its place. What can still be read can be exported."
        )
        return JSONResponse(error_body(request.url.path, "damaged", words), 500)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        words = f"Something unexpected went wrong in Pagoda ({type(error).__name__}). Its log says more. Try again."
        return JSONResponse(error_body(request.url.path, "internal_error", words), 500)
