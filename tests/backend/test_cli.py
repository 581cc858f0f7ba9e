"""The command as a person types it: answers fast, refuses in words, ends when told."""

import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.access_token import kept_token
from backend.cli import main
from backend.config import _UNITS, parse_duration, parse_memory

_ROOT = Path(__file__).parents[2]


def pagoda(*arguments: str, **options) -> subprocess.Popen:
    code = "import sys; from backend.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **options,
    )


def test_help_is_there_without_loading_anything_heavy(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0 and "serve" in capsys.readouterr().out
    code = (
        "import sys; from backend.cli import _parsers; _parsers(); "
        "print([m for m in ('mlx', 'nicegui', 'uvicorn', 'numpy', 'fastapi') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=_ROOT, text=True).strip() == "[]"


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("pagoda ")


def test_inspect_says_what_it_found_and_no_library_says_more(default_data_dir: Path):
    asked = pagoda("inspect", "default", "--data", str(default_data_dir))
    said, more = asked.communicate(timeout=120)
    assert asked.returncode == 0 and more == ""
    assert "30 layers with 20 experts, 18 used a token" in said and "tokens/s" in said


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("8G", 8 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 g", 1_500_000_000),
        ("1000", 1000),
        ("0.5 TB", 500_000_000_000),
        ("9007199254740993", 9007199254740993),
        ("auto", None),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "8 elephants", "-1GB", "0", "0.5", "50%", "GB", "1e9", "9" * 400, "9" * 5000])
def test_a_wrong_size_is_refused_with_an_example(text, capsys):
    with pytest.raises(ValueError, match="8GB"):
        parse_memory(text)
    with pytest.raises(SystemExit):
        main(["serve", f"--memory={text}"])
    assert "8GB" in capsys.readouterr().err


@given(number=st.decimals(0, 10**20, places=3), unit=st.sampled_from(sorted(_UNITS)), space=st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit_or_refused(number, unit, space):
    size = int(number * _UNITS[unit])
    if 0 < size <= sys.maxsize:
        assert parse_memory(f"{number:f}{space}{unit.lower()}") == size
    else:
        with pytest.raises(ValueError, match="8GB"):
            parse_memory(f"{number:f}{space}{unit}")


@given(st.one_of(st.text(), st.from_regex(r"[\d.,eE+-]{0,9}\s?[kKmMgGtTiIbB%]{0,3}", fullmatch=True)))
def test_whatever_is_written_for_a_size_it_is_bytes_or_refused_with_an_example(text):
    try:
        size = parse_memory(text)
    except ValueError as error:
        assert "8GB" in str(error)
    else:
        assert size is None or 0 < size <= sys.maxsize


@given(st.one_of(st.text(), st.from_regex(r"\d{1,400}\.?\d{0,3} ?(s|m|h|min)?", fullmatch=True)))
def test_whatever_is_written_for_a_time_it_is_seconds_or_refused(text):
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        assert "30s" in str(error)
    else:
        assert seconds is None or 0 < seconds < math.inf


@pytest.mark.parametrize("text", ["~nobody-of-that-name/pagoda", "a\0b"])
def test_a_folder_that_cannot_be_is_refused_in_words(text, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--data", text])
    assert "is no folder" in capsys.readouterr().err


def test_a_port_in_use_is_said_with_a_way_out(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--data", str(tmp_path), "--no-open"]) == 1
    assert f"--port {port + 1}" in capsys.readouterr().err


def test_an_address_of_another_machine_is_refused_in_words(tmp_path, capsys):
    assert main(["--host", "192.0.2.1", "--port", "0", "--data", str(tmp_path), "--no-open"]) == 1
    assert "--host" in capsys.readouterr().err


def test_the_token_is_kept_for_its_owner_only_and_can_be_chosen(tmp_path, monkeypatch):
    token = kept_token(tmp_path)
    assert len(token) >= 32 and kept_token(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("PAGODA_TOKEN", "chosen")
    assert kept_token(tmp_path) == "chosen"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_address_answers_and_ends_within_five_seconds(tmp_path, how):
    # A model that does not exist: the page has to be there all the same.
    process = pagoda("--port", "0", "--data", str(tmp_path), "--no-open", "--model", str(tmp_path / "nothing"))
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
        assert httpx.get(f"{address}healthz").json()["status"] == "ok"
        nothing = httpx.get(f"{address}nonsense")
        assert nothing.status_code == 404 and "Go to Pagoda" in nothing.text and "/nonsense" in nothing.text
        assert "error" in httpx.get(f"{address}api/nonsense").json()
        page = httpx.get(address)
        assert page.status_code == 200 and page.headers["x-frame-options"] == "DENY"
        second = pagoda("serve", "--port", "0", "--data", str(tmp_path), "--no-open")
        _, words = second.communicate(timeout=60)
        assert second.returncode == 1 and f"process {process.pid}" in words and "Traceback" not in words
        with httpx.stream("GET", f"{address}api/conversations/{_new(address)}/chunks") as stream:
            assert stream.status_code == 200
            began = time.monotonic()
            process.send_signal(how)
            _, words = process.communicate(timeout=20)
            assert time.monotonic() - began < 5
        assert process.returncode == 0, words
        assert "Traceback" not in words
    finally:
        process.kill()
        process.wait()


def _new(address: str) -> str:
    return httpx.post(f"{address}api/conversations", json={}).json()["id"]
