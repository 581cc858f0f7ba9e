"""A small page of words for a person whose browser met something else than Pagoda's page. It stands alone."""

from html import escape

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Pagoda</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ margin: 0; min-height: 100vh; display: grid; place-items: center; font: 1rem/1.6 system-ui, sans-serif; }}
  main {{ max-width: 34rem; padding: 2rem; }}
  h1 {{ font-size: 1.4rem; margin: 0 0 .5rem; }}
  p {{ margin: 0 0 1.25rem; overflow-wrap: anywhere; }}
</style>
</head>
<body><main><h1>{title}</h1><p>{words}</p>{link}</main></body>
</html>
"""
HOME = '<a href="/">Go to Pagoda</a>'


def words_page(title: str, words: str, link: str = "") -> str:
    """The page as HTML. `link` is HTML already."""
    return _PAGE.format(title=escape(title), words=escape(words), link=link)


def wants_page(headers: Headers) -> bool:
    """Whether a person's browser asks, which wants something to look at."""
    return "text/html" in headers.get("accept", "")


async def not_found(request: Request, error: Exception) -> Response:
    """The answer for an address where nothing is."""
    words = f"There is no page at {request.url.path}. It may have been mistyped, or come from another version."
    return HTMLResponse(words_page("Nothing here", words, HOME), 404)
