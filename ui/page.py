"""The page: a shell with three components in it, the same one for a new chat (`/`) and for a conversation (`/c/{id}`).

It holds no truth. Everything a tab hears goes through its Feed, everything it asks for through the HTTP API.
"""

import json

from fastapi import FastAPI
from nicegui import Client, app, ui
from nicegui.dependencies import register_importmap_override

from backend.gateway import Gateway
from backend.wording import MESSAGE_LIMIT
from backend.words_page import not_found
from ui.assets import static_folder, static_url
from ui.composer import Composer
from ui.feed import Feed
from ui.policy import Policy
from ui.sidebar import Sidebar
from ui.transcript import Transcript
from ui.words import all_words

RECONNECT_TIMEOUT_S = 60  # a network cut of half a minute ends in the same page, not in a reload
HISTORY = 3000  # pushes kept for a tab that is cut off: ten a second for the timeout and the time to notice the cut

_STYLES = ("pagoda", "sidebar", "transcript", "waiting", "prose", "composer", "keeping", "choosing", "picker")

# Before the first paint, so that a dark page never flashes white. static/theme.js takes over from here.
_FIRST_PAINT = """{
  const choice = localStorage.getItem("pagoda.theme") ?? "system";
  const dark = choice === "dark" || (choice === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}"""

# What is there before any script is: the first paint waits for the styles alone. static/transcript.js takes it away.
_SHELL = (
    '<div id="pg-shell" aria-hidden="true"><div><span class="pg-mark"></span>Pagoda</div>'
    '<div><div class="pg-skeleton"><i></i><i></i><i></i></div></div></div>'
)


def install(fastapi_app: FastAPI, gateway: Gateway) -> None:
    """Add the page to the app. Call it after all routes of the API: NiceGUI answers for every path that is left."""
    fastapi_app.add_middleware(Policy)
    app.add_static_files(static_url(), static_folder())
    app.add_exception_handler(404, not_found)  # instead of NiceGUI's own page
    register_importmap_override("pagoda/", f"{static_url()}/")

    def build(client: Client) -> None:
        ui.add_head_html(_head())
        ui.add_body_html(_SHELL)
        sidebar, transcript = Sidebar(), Transcript()
        Composer(MESSAGE_LIMIT)
        feed = Feed(gateway, transcript, sidebar)
        transcript.on_open(feed.open)
        transcript.on_earlier(feed.earlier)
        transcript.on_read(feed.read)

        def disconnected() -> None:
            # After a network cut the old socket is found dead only when the new one serves the tab already.
            if not client.has_socket_connection:
                feed.rest()

        client.on_connect(feed.listen)
        client.on_disconnect(disconnected)
        client.on_delete(feed.rest)

    @ui.page("/")
    def new_chat(client: Client) -> None:
        build(client)

    @ui.page("/c/{conversation_id}")
    def conversation(client: Client, conversation_id: str) -> None:
        build(client)

    ui.run_with(
        fastapi_app,
        title="Pagoda",
        favicon=static_folder() / "pagoda.svg",
        viewport="width=device-width, initial-scale=1, viewport-fit=cover, interactive-widget=resizes-content",
        reconnect_timeout=RECONNECT_TIMEOUT_S,
        message_history_length=HISTORY,
        tailwind=False,
        show_welcome_message=False,
        # Most of what is sent is script, once, over no network at all: compressing it took longer than sending it.
        gzip_middleware_factory=None,
    )


def _head() -> str:
    words = json.dumps(all_words(), ensure_ascii=False).replace("<", "\\u003c")
    styles = "".join(f'<link rel="stylesheet" href="{static_url()}/{name}.css">' for name in _STYLES)
    modules = "".join(f'<link rel="modulepreload" href="{static_url()}/{name}">' for name in _modules())
    return (
        f"<script>{_FIRST_PAINT}</script>{styles}{modules}"
        f'<script type="application/json" id="pagoda-words">{words}</script>'
    )


def _modules() -> list[str]:
    """The modules behind the components. Asked for at once, they do not wait for each other's imports."""
    components = {"transcript.js", "composer.js", "sidebar.js"}  # these have addresses of NiceGUI's own
    return sorted(path.name for path in static_folder().glob("*.js") if path.name not in components)
