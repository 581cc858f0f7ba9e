"""From the name of a model on the command line to its folder; the default model is made where it is missing."""

import sys
from pathlib import Path

from backend.commands.terminal import ProgressLine, show_loading
from engine.client import EngineStatus
from engine.events import Loading


def folder_of(model: str, data_dir: Path) -> Path:
    """The folder of "default", a path or a hub id. Raises EngineError."""
    if model != "default":
        from engine.loader import resolve

        return resolve(model)
    from engine.default_model import ensure_default_model

    line = ProgressLine(sys.stderr)

    def show(stage: str, done: int, total: int, unit: str) -> None:
        show_loading(line, EngineStatus("loading", loading=Loading(stage, done, total, unit)))

    try:
        return ensure_default_model(data_dir, show)
    finally:
        line.clear()
