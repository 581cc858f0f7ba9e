"""The page speaks every language completely, and says nothing that is not in its files."""

import re

import pytest

from ui.assets import static_folder
from ui.words import all_words

OTHERS = [code for code in all_words() if code != "en"]


@pytest.mark.parametrize("code", OTHERS)
def test_no_language_lacks_a_sentence(code: str):
    assert set(all_words()[code]) == set(all_words()["en"])


@pytest.mark.parametrize("code", OTHERS)
def test_every_translation_has_the_same_places_to_fill_in(code: str):
    places = {key: set(re.findall(r"\{(\w+)\}", sentence)) for key, sentence in all_words()["en"].items()}
    for key, sentence in all_words()[code].items():
        assert set(re.findall(r"\{(\w+)\}", sentence)) == places[key], key


def test_every_sentence_the_page_asks_for_exists():
    for path in static_folder().glob("*.js"):
        for key in re.findall(r"""\bt\(\s*['"]([a-z-]+\.[a-z0-9_-]+)['"]""", path.read_text("utf-8")):
            if key.endswith("_"):  # completed at run time: 'welcome.try_' + index
                assert any(known.startswith(key) for known in all_words()["en"]), f"{path.name}: {key}"
            else:
                assert key in all_words()["en"], f"{path.name}: {key}"


def test_english_is_what_an_unknown_language_falls_back_to():
    assert next(iter(all_words())) == "en"
