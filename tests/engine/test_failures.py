"""What is wrong with a checkpoint or its disk is said in words, with file and tensor, as early as it is known."""

import json
import os
import re
import shutil
import threading
from concurrent.futures import wait
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from safetensors.numpy import load_file, save_file

from engine import disk, fetch, loader
from engine.checkpoint import open_checkpoint, read_header
from engine.disk import Disk
from engine.errors import Aborted, CheckpointError, DiskError
from engine.events import Finished, RunFailed
from tests.engine.replies import ask, batch, end_of, reply, tokens_of
from tests.engine.tiny_checkpoints import save, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, config = tiny_model("olmoe")
    return save(tmp_path / "model", model, config)


def change(folder: Path, name: str, new) -> None:
    """Put another array in a tensor's place; None takes the tensor out."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = new(tensors[name]) if new else None
    if tensors[name] is None:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


EXPERT = "model.layers.1.mlp.switch_mlp.up_proj.weight"
TRUNK = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "new", "words"),
    [
        (TRUNK, None, "q_proj"),
        (EXPERT, None, "switch_mlp.up_proj"),
        (EXPERT, lambda w: w[:, :5], "switch_mlp.up_proj"),
        (EXPERT, lambda w: w[:5], "switch_mlp.up_proj"),
        (TRUNK, lambda w: w.astype(np.int32), r"model\.safetensors: tensor .*q_proj.* needs a float"),
        (EXPERT, lambda w: w.view(np.uint32), r"model\.safetensors: tensor .*up_proj.* needs a float"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_before_anything_is_read(folder, name, new, words):
    change(folder, name, new)
    with pytest.raises(CheckpointError, match=words):
        loader.open_model(folder)


def test_quantised_weights_of_another_type_are_named(tmp_path):
    model, config = tiny_model("olmoe")
    folder = save(tmp_path / "q", model, config, {"group_size": 32, "bits": 4})
    change(folder, EXPERT, lambda w: w.view(np.int32))
    with pytest.raises(CheckpointError, match=r"up_proj.* int32, but the model needs U32"):
        loader.open_model(folder)


def test_nan_in_the_trunk_is_found_while_loading(folder):
    change(folder, TRUNK, lambda w: np.where(np.arange(w.size).reshape(w.shape) == 77, np.nan, w))
    with pytest.raises(CheckpointError, match=r"q_proj.*NaN"):
        loader.load(folder, expert_bytes="all")


def test_infinity_in_the_trunk_is_the_models_own_business(folder):
    def infinite(w):
        w = w.copy()
        w.reshape(-1)[:2] = np.inf, -np.inf
        return w

    change(folder, TRUNK, infinite)
    loader.load(folder, expert_bytes="all").close()


def events_of(model, **sampling) -> list:
    return reply(batch(model), ask("Hello", max_tokens=5, **sampling))


def with_tokens(folder: Path) -> Path:
    """As large a vocabulary as the tokenizer's, so that a chat can run."""
    model, config = tiny_model("olmoe", vocab_size=300)
    return save(folder, model, config)


def test_nan_in_an_expert_names_it_and_its_file_instead_of_a_token(tmp_path):
    folder = with_tokens(tmp_path / "m")
    change(folder, EXPERT, lambda w: np.full_like(w, np.nan))
    model = loader.load(folder, expert_bytes="all")
    end = end_of(events_of(model))
    assert isinstance(end, RunFailed) and end.kind == "CheckpointError"
    assert re.search(r"expert \d.*up_proj.*model\.safetensors", end.message)
    model.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"{", "config.json"),
        (b"[1]", "config.json"),
        (b"\xff", "config.json"),
        (b"{}", "model_type"),
        (json.dumps({"model_type": "imaginary"}).encode(), "imaginary"),
        (json.dumps({"model_type": "olmoe"}).encode(), "hidden_size"),
    ],
)
def test_a_config_that_describes_no_known_model_is_refused(folder, config, words):
    (folder / "config.json").write_bytes(config)
    with pytest.raises(CheckpointError, match=words):
        loader.open_model(folder)


def test_without_an_index_a_missing_shard_shows_by_the_others_names(folder):
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        open_checkpoint(folder)


def test_a_name_that_is_in_a_header_twice_is_refused(tmp_path):
    entry = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
    raw = f'{{"a":{entry},"a":{entry}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"1234")
    with pytest.raises(CheckpointError, match="twice"):
        read_header(tmp_path / "model.safetensors")


def test_without_a_tokenizer_nothing_is_read(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    stages = []
    with pytest.raises(CheckpointError, match="tokenizer"):
        loader.load(folder, expert_bytes="all", on_progress=lambda stage, *_: stages.append(stage))
    assert "trunk" not in stages


def tokenizer_config(folder: Path, **changes) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_model_without_a_chat_template_is_given_the_plain_text(tmp_path):
    folder = with_tokens(tmp_path / "m")
    tokenizer_config(folder, chat_template=None)
    model = loader.load(folder, expert_bytes="all")
    events = events_of(model)
    assert isinstance(events[-1], Finished)
    assert events[-1].prompt_tokens == len(model.tokenizer.encode("Hello"))
    model.close()


def test_a_chat_template_that_breaks_is_reported_as_one(tmp_path):
    folder = with_tokens(tmp_path / "m")
    tokenizer_config(folder, chat_template="{{ raise_exception('no system turns here') }}")
    model = loader.load(folder, expert_bytes="all")
    end = end_of(events_of(model))
    assert isinstance(end, RunFailed) and end.kind == "PromptError" and "no system turns here" in end.message
    model.close()


def test_a_trunk_file_that_was_cut_off_meanwhile_is_reported(folder):
    opened = loader.open_model(folder)
    os.truncate(folder / "model.safetensors", 3000)
    with pytest.raises(CheckpointError, match="failed"):
        loader._read_trunk(opened, lambda *_: None)


def run_one(model) -> None:
    mx.eval(model(mx.array([[5, 6, 7]]), cache=make_prompt_cache(model)))


def test_a_file_that_is_written_to_while_it_runs_is_not_trusted(folder):
    model = loader.load(folder, expert_bytes="least")
    run_one(model)
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-8, 2)
        file.write(b"overwrit")
    os.utime(folder / "model.safetensors", ns=(1, 1))  # however coarse the clock of the file system is
    with pytest.raises(DiskError, match=r"model\.safetensors was changed"):
        run_one(model)
    model.close()


def test_a_file_that_was_changed_between_looking_and_loading_is_not_trusted(folder):
    opened = loader.open_model(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    ours = Disk()
    with pytest.raises(DiskError, match="changed"):
        ours.open(opened.files)
    ours.close()


def test_a_folder_that_is_deleted_while_it_runs_goes_on_being_read(folder):
    """The files stay open, so their bytes stay; a download that replaces them changes nothing either."""
    model = loader.load(folder, expert_bytes="least")
    run_one(model)
    shutil.rmtree(folder)
    run_one(model)
    model.close()


class HangingDisk(Disk):
    """Gives nothing until it is released."""

    def __init__(self):
        super().__init__(asynchronous=False)
        self.released = threading.Event()

    def _plain(self, *arguments):
        self.released.wait()
        return super()._plain(*arguments)

    def _natively(self, *arguments):
        self.released.wait()
        return super()._natively(*arguments)

    _by_thread = _plain


@pytest.fixture
def hanging(folder, monkeypatch):
    monkeypatch.setattr(disk, "_LAST_WAIT_S", 0.01)
    model = loader.load(folder, expert_bytes="least")
    hung, healthy = HangingDisk(), model._disk
    hung.open(loader.open_model(folder).files)
    [store] = model._stores
    store._disk = hung
    yield model, hung
    hung.released.set()
    hung.close()
    healthy.close()


def test_a_disk_that_gives_nothing_is_reported_with_file_and_tensor(hanging, monkeypatch):
    model, hung = hanging
    monkeypatch.setattr(fetch, "STALLED_S", 0.3)
    with pytest.raises(DiskError, match=r"gave nothing for .* s: expert \d+ \(model\.layers.*model\.safetensors"):
        run_one(model)
    with pytest.raises(DiskError, match="still owes"):
        run_one(model)
    hung.released.set()
    for late, _ in model._stores[0]._late:
        wait([job for reading in late.readings for job in reading.jobs])
    run_one(model)


def test_stop_is_heeded_while_the_disk_hangs(hanging):
    model, _ = hanging
    abort = threading.Event()
    model.watch.begin(None, abort)
    threading.Timer(0.1, abort.set).start()
    with pytest.raises(Aborted):
        run_one(model)


def test_a_stop_in_the_middle_of_reads_leaves_no_slot_half_filled(folder, monkeypatch):
    right = loader.load(folder, expert_bytes="all")
    expected = np.array(right(mx.array([[5, 6, 7]]), cache=make_prompt_cache(right)))
    right.close()
    model = loader.load(folder, expert_bytes="least")
    [store] = model._stores
    wait, calls = fetch.Fetch.wait, []

    def stopped(self, check):
        calls.append(1)
        if len(calls) == 2:
            raise Aborted("stopped")
        wait(self, check)

    monkeypatch.setattr(fetch.Fetch, "wait", stopped)
    with pytest.raises(Aborted):
        run_one(model)
    got = np.array(model(mx.array([[5, 6, 7]]), cache=make_prompt_cache(model)))
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    assert len(store._late) == 0
    model.close()


def test_tokens_that_came_before_a_failure_were_delivered(tmp_path):
    model = loader.load(with_tokens(tmp_path / "m"), expert_bytes="least")
    replies, events, check = batch(model), [], model._disk.check_unchanged

    def fail_after_two_tokens(files):
        if len(tokens_of(events)) >= 2:
            raise DiskError("the disk is gone")
        check(files)

    model._disk.check_unchanged = fail_after_two_tokens
    replies.add(ask(max_tokens=50), events.append)
    replies.finish()
    assert len(tokens_of(events)) >= 2
    end = end_of(events)
    assert isinstance(end, RunFailed) and (end.kind, end.message) == ("DiskError", "the disk is gone")
    model.close()
