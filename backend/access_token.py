"""The access token that other machines have to show: made once, kept in the data folder for its owner only."""

import os
import secrets
from pathlib import Path

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
