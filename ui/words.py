"""The sentences of the page, one TOML file per language under ui/strings/.

They travel with the page as one flat table per language ("sidebar.new" -> "New chat"), so a switch needs no reload.
"""

import tomllib
from functools import cache
from pathlib import Path

_STRINGS = Path(__file__).parent / "strings"


@cache
def all_words() -> dict[str, dict[str, str]]:
    """Language code -> key -> sentence. English comes first: it is what an unknown language falls back to."""
    codes = sorted((path.stem for path in _STRINGS.glob("*.toml")), key=lambda code: (code != "en", code))
    return {code: _flat(tomllib.loads((_STRINGS / f"{code}.toml").read_text("utf-8"))) for code in codes}


def _flat(sections: dict[str, dict[str, str]]) -> dict[str, str]:
    return {f"{section}.{key}": sentence for section, table in sections.items() for key, sentence in table.items()}
