"""How a refusal looks on the wire: JSON with words for a person, in OpenAI's shape under /v1."""

import json
from typing import Any

from starlette.types import Scope, Send


def error_body(path: str, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """`{error: {message, type}}`; clients of the OpenAI API also look for `param` and `code`."""
    error: dict[str, Any] = {"message": message, "type": kind}
    if path.startswith("/v1"):
        error["type"] = "invalid_request_error" if kind in ("invalid_request", "not_found", "too_large") else kind
        error |= {"param": param, "code": kind}
    return {"error": error}


async def refuse(scope: Scope, send: Send, status: int, kind: str, message: str) -> None:
    """Answer an HTTP request, or close a websocket before it is accepted (the server then says 403)."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": message[:120]})
        return
    body = json.dumps(error_body(scope["path"], kind, message), ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
