"""How a refusal looks on the wire: JSON with words for a person, under /v1 in the shape that the API's clients know."""

import json
from typing import Any

from starlette.types import Scope, Send

_OPENAI_TYPES = {401: "invalid_request_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(path: str, kind: str, message: str, param: str | None = None, status: int = 500) -> dict[str, Any]:
    """`{error: {message, type}}`; clients of the OpenAI API also look for `param` and `code`."""
    if path.startswith("/v1/messages"):
        other = "invalid_request_error" if 400 <= status < 500 else "api_error"
        return {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(status, other), "message": message}}
    if path.startswith("/v1"):
        other = "invalid_request_error" if 400 <= status < 500 else "server_error"
        type = _OPENAI_TYPES.get(status, other)
        code = "invalid_api_key" if status == 401 else kind
        return {"error": {"message": message, "type": type, "param": param, "code": code}}
    return {"error": {"message": message, "type": kind}}


async def refuse(scope: Scope, send: Send, status: int, kind: str, message: str) -> None:
    """Answer an HTTP request, or close a websocket before it is accepted (the server then says 403)."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": message[:120]})
        return
    body = json.dumps(error_body(scope["path"], kind, message, status=status), ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 408:  # the rest of the request is not waited for
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
