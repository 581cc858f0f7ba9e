"""What is written to the pipe is what is read from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import events


@given(st.text(), st.lists(st.integers(0, 1 << 31)), st.lists(st.text(), max_size=3))
def test_a_command_survives_the_pipe(text, tokens, stop):
    sampling = events.Sampling(temperature=0.5, stop=tuple(stop))
    command = events.Generate("r", ({"role": "user", "content": text},), sampling, tuple(tokens), text)
    line = events.encode(command)
    assert line.count(b"\n") == 1
    assert events.decode(line) == command


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"nonsense", b'{"type": "Abort"}', b'{"type": "Abort", "x": 1}'])
def test_anything_else_is_refused(line):
    with pytest.raises(ValueError):
        events.decode(line)
