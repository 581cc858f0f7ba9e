"""What a person can choose when starting Pagoda, and how sizes are written."""

import re
from dataclasses import dataclass, field
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
        raise ValueError(f"{text!r} is not a size. Write it like 8GB, 512MiB, or auto.")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size <= 0:
        raise ValueError(f"{text!r} is no memory at all. Write a size like 8GB, or auto.")
    return size


def parse_duration(text: str) -> float | None:
    """Seconds from "90", "30s", "10m", "2h"; None for "any". Raises ValueError in words."""
    if text.strip().lower() == "any":
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _SECONDS or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no time. Write it like 30s, 10m, 2h, or any.")
    return float(match[1]) * _SECONDS[match[2].lower()]
