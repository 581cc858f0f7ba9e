"""Where the browser's files lie, in a checkout and in an installed wheel, and under which address they are served.

The address carries a hash of their content: a browser may keep them for good, and never mixes two releases.
"""

import hashlib
from functools import cache
from pathlib import Path

_CANDIDATES = (Path(__file__).parent.parent / "static", Path(__file__).parent / "static")


@cache
def static_folder() -> Path:
    """The folder static/: beside ui/ in a checkout, inside ui/ in the wheel."""
    for folder in _CANDIDATES:
        if (folder / "pagoda.css").is_file():
            return folder
    raise FileNotFoundError(
        f"The files of the page are missing: no static/ in {' or '.join(str(c.parent) for c in _CANDIDATES)}. "
        "This installation is incomplete; install Pagoda again."
    )


@cache
def static_url() -> str:
    """The address of static/ on the server, without a slash at its end."""
    digest = hashlib.sha256()
    for path in sorted(static_folder().rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(static_folder())).encode())
            digest.update(path.read_bytes())
    return f"/static/{digest.hexdigest()[:12]}"
