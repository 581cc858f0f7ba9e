"""`pagoda serve`: the page and the API on one port, until Ctrl-C."""

import argparse
import asyncio
import errno
import gc
import os
import signal
import socket
import sys
import webbrowser

from backend.commands.options import add_config_option, add_model_options, port, upstream
from backend.config import LOG_LEVELS, Settings
from backend.errors import CannotStart

HELP = "start Pagoda and its page (this is the default command)"

# An open page or stream is no reason to stay: after this the server ends without waiting for it. With the second that
# running replies get, and the engine's end, the whole takes less than five.
GRACE_S = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Settings()
    add_model_options(parser)
    parser.add_argument(
        "--draft",
        metavar="PATH|HF_ID",
        help="a smaller model with the same tokens, held in memory: it guesses what a paged model will say",
    )
    parser.add_argument(
        "--host",
        default=default.host,
        help=f"the address to listen on (default: {default.host}); anything but this machine needs an access token",
    )
    parser.add_argument("--port", type=port, default=default.port, help=f"default: {default.port}")
    parser.add_argument(
        "--upstream",
        type=upstream,
        action="append",
        default=[],
        metavar="NAME=BASE_URL[,key_env=VARIABLE][,concurrency=N][,patience=10m][,model=NAME ...]",
        help="another OpenAI-compatible server, whose models appear as NAME/model; its key is read from the "
        "environment variable NAME_API_KEY (repeatable)",
    )
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default=default.log_level, help=f"default: {default.log_level}"
    )
    parser.add_argument("--log-prompts", action="store_true", help="write what models are given to read into the log")
    add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status 0 after an orderly end, 1 when Pagoda could not start."""
    settings = Settings(
        model=args.model,
        memory_bytes=args.memory,
        draft=args.draft,
        host=args.host,
        port=args.port,
        data_dir=args.data,
        open_browser=not args.no_open,
        log_level=args.log_level,
        log_prompts=args.log_prompts,
        upstreams=tuple({one.name: one for one in args.upstream}.values()),  # a flag over the file
    )
    os.umask(0o077)  # whatever Pagoda or a library writes is for its owner only
    # The server takes these over while it runs and raises the signal again when it has ended: that is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with _listen(settings) as listener:
            return asyncio.run(_serve(settings, listener))
    except CannotStart as error:
        print(error.message, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _listen(settings: Settings) -> socket.socket:
    """The port is taken before anything else happens, so that a wrong one is told at once."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise CannotStart(f"{settings.host!r} is not an address of this machine ({error.strerror}).") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise CannotStart(_why_not(settings, error)) from error
    return listener


def _why_not(settings: Settings, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {settings.port} is in use, perhaps by another Pagoda: try its page at "
            f"http://{settings.host}:{settings.port}, or start this one with --port {settings.port + 1}."
        )
    if error.errno == errno.EACCES:
        return f"Port {settings.port} is reserved by the system. Choose one above 1023, for example --port 8080."
    return f"Pagoda cannot listen on {settings.host}:{settings.port}: {error.strerror}. Try another --host or --port."


async def _serve(settings: Settings, listener: socket.socket) -> int:
    import logging

    import uvicorn

    from backend.access_token import keep_out_of_logs, kept_token
    from backend.app import build
    from backend.commands.terminal import ProgressLine, show_loading
    from backend.guard import is_loopback
    from backend.late_heads import LateHeads

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the log has a line of its own for each reply
    logging.getLogger("pagoda.prompts").setLevel(logging.INFO if settings.log_prompts else logging.WARNING)
    token = None if is_loopback(settings.host) else kept_token(settings.data_dir)
    if token is not None:
        keep_out_of_logs(token)
    pagoda = build(settings, token)
    line = ProgressLine(sys.stderr)
    if pagoda.engine is not None:
        pagoda.engine.watch(lambda status: show_loading(line, status))
    address = _address(settings.host, listener.getsockname()[1], token)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                # What is there by now stays. Else each full collection looks through it again, and every stream waits
                # for that (67 ms).
                gc.collect()
                gc.freeze()
                line.clear()
                print(f"Pagoda is open at {address}   (Ctrl-C ends it)", flush=True)
                if settings.open_browser and _has_desktop():
                    asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            line.clear()
            await pagoda.end_replies()  # before the server waits for open streams, so that they end
            await super().shutdown(sockets)

    config = uvicorn.Config(
        pagoda.asgi,
        http=LateHeads,
        log_level=settings.log_level,
        access_log=settings.log_level == "debug",
        lifespan="on",
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    server = Server(config)
    await server.serve(sockets=[listener])
    return 0 if server.started else 1


def _address(host: str, port: int, token: str | None) -> str:
    name = _own_address() if host in ("", "0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _own_address() -> str:
    """This machine's address in its network: a phone finds that, but seldom a computer's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks the system which way it would go
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


def _has_desktop() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
