"""Another site's page, in the same browser, at a real second origin: it gets nothing out of Pagoda and nothing in."""

import http.client
import json
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import FLAGS
from tests.browser.running_pagoda import REPOSITORY, START
from tests.browser.staged_pagoda import StagedPagoda
from tests.browser.written import write_turns
from ui.assets import static_url

SECRET = "nobody else may read this"

# What a page can try without asking anybody. Every line names what it got, if it got something.
ATTEMPTS = """async (pagoda) => {
  const got = [], socket = "/_nicegui_ws/socket.io/?EIO=4&transport=";
  const asked = async (name, path, options = {}) => {
    try {
      const answer = await fetch(pagoda + path, { signal: AbortSignal.timeout(5000), ...options });
      got.push([name, answer.status, await answer.text()]);
    } catch { /* refused */ }
  };
  const post = (type, body) => ({ method: "POST", headers: { "Content-Type": type }, body });
  await asked("fetch", "/api/conversations");
  await asked("fetch with cookies", "/api/conversations", { credentials: "include" });
  await asked("fetch without CORS", "/api/conversations", { mode: "no-cors" });
  await asked("fetch of the page", "/c/c_secret");
  await asked("post of JSON", "/api/conversations", post("application/json", "{}"));
  await asked("post of text", "/api/conversations", { ...post("text/plain", "{}"), mode: "no-cors" });
  await asked("delete", "/api/conversations/c_secret", { method: "DELETE" });
  await asked("polling", socket + "polling");
  await asked("polling without CORS", socket + "polling", { mode: "no-cors" });
  await asked("stream", "/api/conversations/c_secret/chunks");
  const loaded = (tag, attribute, path) => new Promise(resolve => {
    const element = document.createElement(tag);
    element.onload = () => { got.push([tag, 200, path]); resolve(); };
    element.onerror = resolve;
    element[attribute] = pagoda + path;
    document.body.append(element);
  });
  await loaded("script", "src", "/api/conversations");
  await loaded("script", "src", "/_nicegui_ws/socket.io/?EIO=4&transport=polling&j=0");
  await loaded("img", "src", `/favicon.ico?${Math.random()}`); // not out of the cache
  await new Promise(resolve => {
    const wire = new WebSocket(pagoda.replace("http", "ws") + socket + "websocket");
    wire.onopen = () => { got.push(["websocket", 101, ""]); resolve(); };
    wire.onerror = resolve;
  });
  await new Promise(resolve => {
    const events = new EventSource(pagoda + "/api/conversations/c_secret/chunks");
    events.onopen = () => { got.push(["EventSource", 200, ""]); resolve(); };
    events.onerror = () => { events.close(); resolve(); };
  });
  const frame = document.createElement("iframe");
  await new Promise(resolve => { frame.onload = resolve; frame.src = pagoda + "/"; document.body.append(frame); });
  try { got.push(["frame", 200, frame.contentWindow.document.body.innerText]); } catch { /* another origin */ }
  return got.filter(([, status]) => status !== 0 && status !== 403);
}"""

FORMS = [
    ("application/x-www-form-urlencoded", "/api/conversations"),
    ("text/plain", "/api/conversations"),
    ("multipart/form-data", "/api/import"),
    ("text/plain", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"),
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StagedPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    write_turns(data_dir, "c_secret", [(SECRET, SECRET)])
    running = StagedPagoda(data_dir)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of a server that is another site under whatever name it is asked."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Nice things</title><body>Nice things")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def fooled(browser: Browser) -> Iterator[Browser]:
    """A browser for which every name ending in .example is this machine, as after a DNS rebinding."""
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = next((path for name in names if (path := shutil.which(name))), None)
    rule = "--host-resolver-rules=MAP *.example 127.0.0.1"
    fooled = browser.browser_type.launch(executable_path=installed, args=[*FLAGS, rule])
    yield fooled
    fooled.close()


@pytest.fixture
def page(fooled: Browser) -> Iterator[Page]:
    context = fooled.new_context()
    yield context.new_page()
    context.close()


def kept(stage: StagedPagoda) -> str:
    return json.dumps([stage.get("/api/conversations"), stage.conversation("c_secret")], sort_keys=True)


@pytest.mark.parametrize("host", ["evil.example", "localhost"])
def test_another_sites_page_gets_nothing_out_and_nothing_in(page: Page, stage: StagedPagoda, elsewhere: int, host: str):
    before = kept(stage)
    page.goto(f"http://{host}:{elsewhere}/")
    assert page.evaluate(ATTEMPTS, stage.url) == []
    for kind, path in FORMS:
        page.goto(f"http://{host}:{elsewhere}/")
        submit = """([kind, action]) => {
          const form = Object.assign(document.createElement("form"), { method: "post", enctype: kind, action });
          const field = Object.assign(document.createElement("input"), { name: '{"model":"x","y":"', value: '"}' });
          form.append(field);
          document.body.append(form);
          form.submit();
        }"""
        with page.expect_navigation() as posted:
            page.evaluate(submit, [kind, stage.url + path])
        assert posted.value is not None and posted.value.status == 403, (kind, path)
    assert kept(stage) == before


def test_another_site_may_only_link_to_pagoda_and_learns_nothing_of_the_window(
    page: Page, stage: StagedPagoda, elsewhere: int
):
    page.goto(f"http://evil.example:{elsewhere}/")
    with page.context.expect_page() as opened:
        page.evaluate("address => { window.other = open(address); }", f"{stage.url}/c/c_secret")
    expect(opened.value.locator(".pg-transcript[data-loaded=true]")).to_be_visible()
    reading = "(() => { try { return window.other.document.title } catch { return 'refused' } })()"
    assert page.evaluate(reading) == "refused"


def test_a_name_that_was_rebound_to_this_machine_reaches_nothing(page: Page, stage: StagedPagoda):
    """The attacker's page came from their own server; then the name's address became ours, at our port."""
    rebound = f"http://rebound.example:{urlsplit(stage.url).port}"
    first = rebound + "/first"
    page.route(first, lambda route: route.fulfill(content_type="text/html", body="<body>Nice things"))
    before = kept(stage)
    page.goto(first)
    assert page.evaluate(ATTEMPTS, rebound) == []
    assert kept(stage) == before
    assert SECRET not in page.content()
    answer = page.goto(f"{rebound}/c/c_secret")
    assert answer is not None and answer.status == 403 and SECRET not in page.content()


def test_script_that_got_into_the_page_does_not_run(page: Page, stage: StagedPagoda):
    page.goto(f"{stage.url}/c/c_secret")
    expect(page.locator(".pg-transcript[data-loaded=true]")).to_be_visible()
    got_in = """async () => {
      window.blocked = 0;
      addEventListener("securitypolicyviolation", () => window.blocked += 1);
      const box = document.body.appendChild(document.createElement("div"));
      box.innerHTML = "<img src=x onerror='window.broken=1'><svg onload='window.broken=2'></svg>" +
        "<iframe srcdoc='<script>parent.broken=3</script>'></iframe><a href='javascript:window.broken=4'>x</a>" +
        "<img src='https://evil.example/leak.png'>";
      box.querySelector("a").click();
      box.append(Object.assign(document.createElement("script"), { textContent: "window.broken = 5" }));
      box.append(Object.assign(document.createElement("script"), { src: "https://evil.example/x.js" }));
      await fetch("https://evil.example/").catch(() => null);
    }"""
    page.evaluate(got_in)
    page.wait_for_function("window.blocked >= 6")
    assert page.evaluate("window.broken") is None


@pytest.mark.parametrize(
    "path",
    ["/static/{hash}/../../backend/guard.py", "/static/{hash}/%2e%2e/%2e%2e/backend/guard.py",
     "/static/{hash}/..%2f..%2fbackend%2fguard.py", "/static/{hash}/%252e%252e/backend/guard.py",
     "/static/{hash}//etc/passwd", "/static/{hash}/%5c..%5c..%5cbackend%5cguard.py", "/static/{hash}/vendor/",
     "/../pagoda.db", "/api/conversations/..%2f..%2fpagoda.db", "/api/conversations/%2e%2e%2fpagoda.db/export",
     "/c/..%2f..%2fpagoda.db", "/_nicegui/3/static/..%2f..%2f..%2f__init__.py", "/v1/models/..%2f..%2fetc%2fpasswd"],
)  # fmt: skip
def test_no_address_leads_to_a_file_outside_of_the_page(stage: StagedPagoda, path: str):
    address = urlsplit(stage.url)
    path = path.replace("/static/{hash}", static_url())
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 0, timeout=10)
    connection.putrequest("GET", path)  # as it stands: no client tidies it
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert b"root:" not in body and b"import " not in body.split(b"<!doctype")[0] and b"SQLite format" not in body
    assert answer.status in (400, 404, 405) or path.startswith("/c/"), answer.status
    assert SECRET.encode() not in body


def test_the_token_is_in_no_address_log_or_script_after_its_first_use(page: Page, tmp_path: Path, elsewhere: int):
    command = [
        sys.executable, "-c", START, "serve", "--no-open", "--port", "0", "--host", "0.0.0.0", "--data", str(tmp_path),
        "--upstream", "far=http://127.0.0.1:9/v1", "--model", "far/none", "--log-level", "debug",
    ]  # fmt: skip
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        printed = process.stdout.readline()
        token = (tmp_path / "token").read_text().strip()
        assert f"?token={token}" in printed
        url = f"http://127.0.0.1:{urlsplit(printed.split()[4]).port}"
        assert httpx.get(url + "/api/conversations").status_code == 401
        seen: list[str] = []
        page.on("request", lambda request: seen.append(request.url))
        page.goto(f"{url}/?token={token}")
        expect(page.locator(".pg-transcript[data-loaded=true]")).to_be_visible()
        assert page.url == f"{url}/" and [address for address in seen if token in address] == seen[:1]
        [cookie] = page.context.cookies()
        assert cookie.get("httpOnly") and cookie.get("sameSite") == "Strict" and cookie.get("value") == token
        known = page.evaluate(
            "document.cookie + JSON.stringify({...localStorage}) + document.documentElement.outerHTML"
        )
        assert token not in known
        # Another site cannot use the cookie, nor can a page at another port of the same name.
        for host in ("evil.example", "127.0.0.1"):
            page.goto(f"http://{host}:{elsewhere}/")
            assert page.evaluate(ATTEMPTS, url) == []
        process.terminate()
        logs = process.stdout.read() + (tmp_path / "serve.log").read_text()  # uvicorn writes to both
        assert "?token=(token)" in logs and "pagoda_token=(token)" in logs and token not in logs
    finally:
        process.kill()
        process.wait(30)
    (tmp_path / "serve.log").unlink()  # the test's own
    for path in [tmp_path, *tmp_path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
