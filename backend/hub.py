"""What a model on the Hugging Face hub consists of: the files that Pagoda needs, with sizes and checksums.

Asked of the hub's own API with httpx. huggingface_hub would do it too, but since 2.x it throws away what a broken
download has brought, and it checks no contents: models of tens of GB need both.
"""

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import httpx

NAME = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}")
# What mlx-lm reads, without Python files: code of a model is never run here.
PATTERNS = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja")
CONNECT_S = 10.0
READ_S = 60.0  # a hub that sends nothing for so long has dropped the connection; the download goes on where it was


class DownloadFailed(Exception):
    """It cannot be downloaded, or not now; the message says why and what to do. `passing`: trying again may help."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class HubFile:
    """`etag` names the file's blob in the cache. It is the SHA-256 of a large file, the Git hash of a small one."""

    path: str
    size: int
    etag: str
    large: bool


@dataclass(frozen=True)
class HubModel:
    """`commit` is what `main` was when we asked: all files are of it."""

    name: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def endpoint() -> str:
    """The hub's address without a slash at its end; HF_ENDPOINT is honoured."""
    from huggingface_hub import constants

    return constants.ENDPOINT.rstrip("/")


def cache_folder() -> Path:
    """Where models of the hub lie on this computer; HF_HOME and HF_HUB_CACHE are honoured."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def new_client() -> httpx.AsyncClient:
    """Follows the hub's redirects to where its files lie; the token stays with the hub itself."""
    from huggingface_hub import get_token

    headers = {"User-Agent": "pagoda", "Accept-Encoding": "identity"}
    if token := get_token():
        headers["Authorization"] = f"Bearer {token}"
    timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
    return httpx.AsyncClient(headers=headers, timeout=timeout, follow_redirects=True)


def name_in(text: str) -> str:
    """The hub id in what a person typed or pasted: `org/name`, or the address of its page. Raises DownloadFailed."""
    bare = re.sub(r"^(https?://)?[^/\s]+\.[a-z]{2,}/(?=[^/]+/)", "", text.strip())
    name = "/".join(bare.split("/")[:2]).split("?")[0].split("#")[0]
    if not NAME.fullmatch(name) or ".." in name:
        raise DownloadFailed(f"{text.strip()[:100]!r} is no model of the hub. Write it as organisation/name.")
    return name


async def look_up(client: httpx.AsyncClient, name: str) -> HubModel:
    """Ask the hub what there is. Raises DownloadFailed."""
    try:
        answer = await client.get(f"{endpoint()}/api/models/{name}/revision/main", params={"blobs": "true"})
    except httpx.HTTPError as error:
        raise DownloadFailed(unreachable(error), passing=True) from error
    check(answer, name)
    try:
        said = answer.json()
        files = tuple(file for row in said["siblings"] if (file := _file(row)) is not None)
        commit = str(said["sha"])
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadFailed(f"{endpoint()} answered, but not as a model hub does. Check HF_ENDPOINT.") from error
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise DownloadFailed(f"{endpoint()} names no version of {name}. Check HF_ENDPOINT.")
    names = [file.path for file in files]
    if "config.json" not in names or not any(path.endswith(".safetensors") for path in names):
        others = [str(row.get("rfilename", "")) for row in said["siblings"]]
        what = "GGUF files, which Pagoda cannot page" if any(o.endswith(".gguf") for o in others) else "other files"
        raise DownloadFailed(
            f"{name} has no model*.safetensors with a config.json, only {what}. "
            "Look for the original or an MLX version of it."
        )
    return HubModel(name, commit, tuple(sorted(files, key=lambda file: (file.large, file.path))))


def address(name: str, commit: str, path: str) -> str:
    """Where the hub gives a file."""
    return f"{endpoint()}/{name}/resolve/{commit}/{quote(path)}"


def check(answer: httpx.Response, name: str) -> None:
    """Raises DownloadFailed with a person's words where the hub refused."""
    status, code = answer.status_code, answer.headers.get("x-error-code", "")
    if status < 400:
        return
    if code == "GatedRepo" or status == 403:
        raise DownloadFailed(
            f"{name} is gated: its owner asks you to accept terms first. Do that on its page at the hub, then "
            "`hf auth login` on this computer, and try again."
        )
    if status == 401 and "authorization" in answer.request.headers:
        raise DownloadFailed(
            f"The hub does not know {name}, or your token may not see it. Check the spelling, or `hf auth login`."
        )
    if status in (401, 404):
        raise DownloadFailed(
            f"The hub knows no model {name}. Check the spelling; for a private one, `hf auth login` first."
        )
    if status == 429 or status >= 500:
        raise DownloadFailed(f"The hub is busy (it answered {status}). Try again in a while.", passing=True)
    raise DownloadFailed(f"The hub refused {name} (it answered {status}).")


def unreachable(error: httpx.HTTPError) -> str:
    """Why the hub gave nothing."""
    host = httpx.URL(endpoint()).host
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"{host} cannot be reached. Check the network; what has come so far is kept."
    return f"The connection to {host} broke off. What has come so far is kept."


def _file(row: dict[str, Any]) -> HubFile | None:
    """One row of the hub's list; None for a file that is not needed here, or whose name leads out of its folder."""
    path = str(row["rfilename"])
    parts = PurePosixPath(path).parts
    if len(parts) != 1 or path.startswith(".") or not any(fnmatch.fnmatchcase(path, p) for p in PATTERNS):
        return None  # mlx-lm reads the top folder alone
    lfs = row.get("lfs")
    etag = str(lfs["sha256"] if lfs else row["blobId"])
    if not re.fullmatch(r"[0-9a-f]{64}" if lfs else r"[0-9a-f]{40}", etag):
        raise ValueError(f"no checksum: {etag}")
    return HubFile(path, int(lfs["size"] if lfs else row["size"]), etag, bool(lfs))
