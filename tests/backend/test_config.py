"""pagoda.toml and its flags: what holds, where it came from, and what is wrong by line and key."""

import json
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.cli import main
from backend.commands.options import upstream
from backend.config import parse_duration
from backend.config_file import ConfigError, read
from tests.backend.conftest import House

WHOLE = """\
# my Pagoda
model = "near/small"
memory = "2GB"
port = 9000
open = false
log_level = "info"

[upstream.near]
base_url = "http://localhost:11434"
key_env = "NEAR_KEY"
concurrency = 2
patience = "10m"
models = ["small"]

[upstream.far]
base_url = "https://far.example/v1"
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "pagoda.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_whole_file_is_read(write):
    values = read(write(WHOLE)).values
    assert (values["memory"], values["port"], values["no_open"]) == (2 * 10**9, 9000, True)
    near, far = values["upstream"]
    assert (near.base_url, near.concurrency, near.patience_s) == ("http://localhost:11434/v1", 2, 600)
    assert (far.key_variable, far.patience_s, near.models) == ("FAR_API_KEY", None, ("small",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('model = "x"\nprot = 1', ["line 2", "prot", "port"]),
        ("port = 99999", ["line 1", "port", "65535"]),
        ('\n\nmemory = "lots"', ["line 3", "memory", "8GB"]),
        ('log_level = "loud"', ["line 1", "log_level", "warning"]),
        ('open = "no"', ["line 1", "open", "true or false"]),
        ("model = \n", ["TOML", "line 1"]),
        ("\nport = " + "9" * 5000, ["TOML", "digits"]),
        ("model = " + "[" * 5000, ["too deep"]),
        ('data = "~nobody-of-that-name"', ["line 1", "data", "no such user"]),
        ('port = 1\ndata = "a\\u0000b"', ["line 2", "data", "zero byte"]),
        ('[upstream.x]\nbase_url = "nowhere"', ["line 2", "upstream.x.base_url", "http"]),
        ('[upstream.x]\nbase_url = "http://a"\nkey = "sk-secret"', ["line 3", "upstream.x.key", "key_env"]),
        ('[upstream.x]\nbase_url = "http://a"\nspeed = 1', ["line 3", "upstream.x.speed", "concurrency"]),
        ('[upstream.x]\nbase_url = "http://a"\npatience = "long"', ["line 3", "patience", "10m"]),
        ("[upstream.x]\nconcurrency = 2", ["line 1", "upstream.x", "base_url"]),
        ('upstream = "http://a"', ["line 1", "upstream", "[upstream.NAME]"]),
    ],
)
def test_what_is_wrong_is_named_by_line_and_key(write, text, words, capsys):
    path = write(text)
    with pytest.raises(ConfigError) as error:
        read(path)
    assert all(word in str(error.value) for word in words) and "sk-secret" not in str(error.value)
    assert main(["serve", "--config", str(path)]) == 2
    assert words[-1] in capsys.readouterr().err


_RIGHT = {
    "model": st.sampled_from(["default", "org/name", "/a folder/模型"]),
    "memory": st.integers(1, 10**6).map(lambda n: f"{n}MB"),
    "data": st.sampled_from(["here", "/a folder/数据"]),
    "host": st.just("127.0.0.1"),
    "port": st.integers(0, 65535),
    "open": st.booleans(),
    "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
    "log_prompts": st.booleans(),
}
_WRONG = {
    "model": 7, "memory": "50%", "data": False, "host": [], "port": 65536, "open": "no", "log_level": "loud",
    "log_prompts": 1,
}  # fmt: skip


@given(data=st.data(), keys=st.permutations(sorted(_RIGHT)), blanks=st.lists(st.sampled_from(["", "# port = 1"])))
def test_every_file_is_read_as_it_was_written_and_one_wrong_value_is_named_by_its_line(data, keys, blanks):
    keys = keys[: data.draw(st.integers(1, len(keys)))]
    values = {key: data.draw(_RIGHT[key]) for key in keys}
    lines = [*blanks, *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pagoda.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        found = read(path)
        options = {name: value for name, value in found.values.items() if name not in ("no_open", "memory", "data")}
        assert options == {key: value for key, value in values.items() if key not in ("open", "memory", "data")}
        assert found.values.get("no_open") == (not values["open"] if "open" in values else None)
        assert found.values.get("memory") == (int(values["memory"][:-2]) * 10**6 if "memory" in values else None)
        assert found.values.get("data") == (Path(values["data"]) if "data" in values else None)
        assert found.lines == {key: len(blanks) + n for n, key in enumerate(keys, 1)}
        wrong = data.draw(st.sampled_from(keys))
        at = len(blanks) + keys.index(wrong)
        lines[at] = f"{wrong} = {json.dumps(_WRONG[wrong])}"
        path.write_text("\n".join(lines), encoding="utf-8")
        with pytest.raises(ConfigError, match=f"line {at + 1}: {wrong}: "):
            read(path)


def test_a_file_that_was_named_has_to_be_there(tmp_path, capsys):
    assert main(["--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err


def test_flags_win_over_the_file_and_doctor_says_where_each_value_is_from(write, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NEAR_KEY", "sk-secret")
    flags = ["--port", "7000", "--upstream", "far=http://closer/v1,concurrency=3,patience=5s", "--data", str(tmp_path)]
    path = write(WHOLE)
    assert main(["doctor", "--json", "--config", str(path), *flags]) == 0
    out = capsys.readouterr().out
    options = json.loads(out)["options"]
    assert options["port"] == {"value": 7000, "source": "--port"}
    assert options["model"] == {"value": "near/small", "source": f"{path} line 2"}
    assert options["host"] == {"value": "127.0.0.1", "source": "default"}
    assert options["open"] == {"value": False, "source": f"{path} line 5"}
    assert (
        options["upstream.near"]["source"] == f"{path} line 8"
        and "NEAR_KEY is set" in options["upstream.near"]["value"]
    )
    assert options["upstream.far"]["source"] == "--upstream" and "3 at a time" in options["upstream.far"]["value"]
    assert "sk-secret" not in out


@pytest.mark.parametrize("flag", ["near", "near=nowhere", "near=http://a,speed=2", "near=http://a,concurrency=no"])
def test_a_wrong_upstream_flag_is_refused(flag, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--upstream", flag])
    assert "upstream" in capsys.readouterr().err


def test_models_that_a_server_does_not_list_can_be_named_in_a_flag():
    assert upstream("far=http://far/v1,model=org/a:b,patience=5s,model=c").models == ("org/a:b", "c")


def test_times_are_read_as_people_write_them():
    assert [parse_duration(text) for text in ("90", "30s", "1.5 m", "2h", "any")] == [90, 30, 90, 7200, None]


@pytest.mark.parametrize("asked", [False, True])
async def test_each_reply_is_one_line_in_the_log_without_its_prompt_unless_asked(house: House, caplog, asked):
    caplog.set_level("INFO")
    prompts = logging.getLogger("pagoda.prompts")
    prompts.setLevel(logging.INFO if asked else logging.WARNING)
    try:
        sent = await house.turn(house.conversation(), "secret question", "some answer")
    finally:
        prompts.setLevel(logging.WARNING)
    lines = [record.getMessage() for record in caplog.records if record.name == "pagoda.replies"]
    assert len(lines) == 1 and sent.attempt_id in lines[0] and "complete (stop), 7 tokens read" in lines[0]
    assert ("secret question" in caplog.text) is asked and "some answer" not in caplog.text
