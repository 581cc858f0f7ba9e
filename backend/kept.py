"""What a person set on the page and that outlives a restart: a small JSON file in the data folder."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from backend.errors import CannotWrite

log = logging.getLogger(__name__)


class Kept:
    """Values by name; each change is on disk, whole, before `set` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            self._values = read if isinstance(read, dict) else {}
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # a lost choice is no reason not to start
            log.warning("%s cannot be read: %s", path, error)

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """None forgets it. Raises CannotWrite."""
        values = {**self._values, name: value}
        values = {key: kept for key, kept in values.items() if kept is not None}
        try:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(values, indent=1), encoding="utf-8")
            os.replace(fresh, self._path)
        except OSError as error:
            raise CannotWrite(f"This could not be kept in {self._path}: {error.strerror or error}.") from error
        self._values = values
