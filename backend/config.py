"""What a person can choose when starting Pagoda, and how sizes are written."""

import math
import re
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from platformdirs import user_data_dir

from backend.upstream_settings import UpstreamSettings

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

LOG_LEVELS = ("debug", "info", "warning", "error")
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Settings:
    """`model` is "default", a folder, or a hub id, and so is `draft`, a smaller one that guesses for it; `memory_bytes`
    None means: as much as this machine can spare."""

    model: str = "default"
    memory_bytes: int | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    data_dir: Path = field(default_factory=lambda: Path(user_data_dir("pagoda", appauthor=False)))
    open_browser: bool = True
    log_level: str = "warning"
    log_prompts: bool = False
    draft: str | None = None
    upstreams: tuple[UpstreamSettings, ...] = ()


def parse_memory(text: str) -> int | None:
    """Bytes from "8GB", "512MiB", "1.5 G"; None for "auto". Raises ValueError in words."""
    if text.strip().lower() == "auto":
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text[:40]!r} is not a size. Write it like 8GB, 512MiB, or auto.")
    size = int(Decimal(match[1]) * _UNITS[match[2].upper()])  # exact, however long the number is
    if size <= 0:
        raise ValueError(f"{text[:40]!r} is no memory at all. Write a size like 8GB, or auto.")
    if size > sys.maxsize:
        raise ValueError(f"{text[:40]!r} is more memory than any computer has. Write a size like 8GB, or auto.")
    return size


def parse_duration(text: str) -> float | None:
    """Seconds from "90", "30s", "10m", "2h"; None for "any". Raises ValueError in words."""
    if text.strip().lower() == "any":
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    seconds = float(match[1]) * _SECONDS.get(match[2].lower(), 0) if match is not None else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text[:40]!r} is no time. Write it like 30s, 10m, 2h, or any.")
    return seconds


def parse_folder(text: str) -> Path:
    """A path as a person writes it, with ~ for a home. Raises ValueError in words."""
    if "\0" in text:
        raise ValueError(f"{text!r} is no folder: no name has a zero byte in it.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text!r} is no folder: there is no such user on this computer.") from None
