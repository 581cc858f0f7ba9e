"""Tokenizers and chat templates from people who mean harm, or who made a mistake: stopped, and reported in words."""

import contextlib
import json
import random
from pathlib import Path

import pytest

from engine import loader
from engine import prompt as prompt_module
from engine.errors import EngineError, PromptError
from engine.events import Generate
from engine.patience import TookTooLong, at_most
from engine.prompt import prompt_tokens
from tests.engine.tool_models import thinking_model

HELLO = ({"role": "user", "content": "Hello"},)
REACHING = {
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch /tmp/pagoda-was-broken-into') }}",
    "a filter": "{{ messages|attr('__class__')|attr('__base__') }}",
    "a format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}{{ os.system('id') }}",
    "change": "{{ messages.append('x') }}",
    "a range without end": "{% for i in range(10**9) %}x{% endfor %}",
}
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro of itself": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_model(tmp_path_factory.mktemp("bad") / "model")


@pytest.fixture(scope="module")
def model(folder: Path):
    model = loader.load(folder, expert_bytes="all")
    yield model
    model.close()


def with_template(model, template: str):
    model.tokenizer.chat_template = template
    return prompt_tokens(model, Generate("r", HELLO))


@pytest.mark.parametrize("how", REACHING)
def test_a_template_that_reaches_out_is_stopped_and_reported(model, how: str):
    with contextlib.suppress(PromptError):
        ids = with_template(model, REACHING[how])
        said = model.tokenizer.decode(ids)
        assert not any(sign in said for sign in ("<class", "root:", "uid=", "built-in", "{'__")), said
    assert not Path("/tmp/pagoda-was-broken-into").exists()


@pytest.mark.parametrize("how", ENDLESS)
def test_a_template_without_an_end_is_stopped_and_reported(model, how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_module, "TEMPLATE_S", 0.3)
    with pytest.raises(PromptError, match="template"):
        with_template(model, ENDLESS[how])


def test_what_ends_in_time_is_never_ended():
    for _ in range(200):
        with contextlib.suppress(TookTooLong), at_most(0.001):
            sum(range(20_000))
    assert sum(range(10**5)) == 4_999_950_000  # no exception that came late


def mutated(value, draw: random.Random):
    """A JSON value with one thing in it that is something else."""
    odd = [None, True, -1, 1e308, "", "\ud800", "x" * 5000, [], {}, [[]], {"__type": "AddedToken"}]
    if isinstance(value, dict) and value and draw.random() < 0.8:
        key = draw.choice(list(value))
        return {**value, key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(odd)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json", "config.json", "generation_config.json"])
def test_a_model_whose_files_say_nonsense_opens_or_is_refused_in_words(folder: Path, tmp_path: Path, file: str):
    draw = random.Random(file)
    copy = tmp_path / "model"
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != file:
            (copy / path.name).symlink_to(path)
    original = json.loads((folder / file).read_text())
    for _ in range(12):
        text = json.dumps(mutated(original, draw))
        if draw.random() < 0.2:
            text = text[: draw.randrange(len(text))]
        (copy / file).write_text(text)
        try:
            model = loader.load(copy, expert_bytes="all")
        except EngineError as error:
            assert str(error)
            continue
        with contextlib.suppress(EngineError):
            prompt_tokens(model, Generate("r", HELLO))
        model.close()
