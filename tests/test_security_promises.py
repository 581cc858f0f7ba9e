"""SECURITY.md names a test for each promise: every one of them exists under that name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROMISES = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())


@pytest.mark.parametrize("file, name", PROMISES)
def test_a_promise_is_held_by_a_test_that_exists(file: str, name: str):
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_every_row_of_the_promises_names_a_test():
    text = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| Promise")]
    assert len(rows) > 10 and all("::test_" in row for row in rows)
