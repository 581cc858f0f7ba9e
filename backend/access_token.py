"""The access token that other machines have to show: made once, kept in the data folder for its owner only.

It is in no line of any log, whatever wrote it: the address of a first visit, or a header in a server's debug log.
"""

import logging
import os
import secrets
from pathlib import Path
from typing import Any

from backend.errors import CannotStart


def kept_token(data_dir: Path) -> str:
    """The token of this data folder, the same after a restart, so that browsers stay signed in.

    The variable PAGODA_TOKEN overrides it.
    """
    if chosen := os.environ.get("PAGODA_TOKEN", "").strip():
        if not chosen.isascii() or not all(c.isalnum() or c in "-._~" for c in chosen):
            raise CannotStart("PAGODA_TOKEN may hold only letters, digits and - . _ ~ because it travels in a cookie.")
        return chosen
    path = data_dir / "token"
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and (token := path.read_text().strip()):
            return token
        token = secrets.token_urlsafe(24)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(token + "\n")
        return token
    except OSError as error:
        raise CannotStart(f"The access token cannot be kept in {path}: {error.strerror or error}.") from error


def keep_out_of_logs(token: str) -> None:
    """From now on every line of this process's logs has `(token)` where the token would stand."""
    make = logging.getLogRecordFactory()

    def without(value: object) -> object:
        return value.replace(token, "(token)") if isinstance(value, str) else value

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        made.msg = without(made.msg)
        if isinstance(made.args, tuple):
            made.args = tuple(without(value) for value in made.args)
        return made

    logging.setLogRecordFactory(record)
