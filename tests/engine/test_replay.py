"""Tokens that repeat what was recorded of one: the very bits of the model's own code, or that code."""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

import engine
from engine.errors import Aborted
from engine.kernels import replay, steps
from engine.kernels.addresses import CACHES, UNDECIDED
from engine.kernels.host_array import HostArray, host_mx, rms_norm_of
from engine.kernels.host_pass import _PROOFS, _RECORDINGS
from engine.kernels.tape import CannotRecord, Native, Position, Tape
from engine.loader import PagedModel
from engine.synth import synthesise
from tests.engine.tiny_checkpoints import save, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Iterator[PagedModel]:
    folder = tmp_path_factory.mktemp("replay") / "tiny"
    shape = {"layers": 3, "experts": 16, "hidden": 128, "expert_hidden": 64, "top_k": 4, "vocab": 512}
    model = engine.load(synthesise(folder, "qwen3-moe", **shape), expert_bytes=0.5)
    assert model._host_pass._replay is not None and model._host_pass._proofs == _PROOFS
    yield model
    model.close()


@contextmanager
def as_written(model: PagedModel) -> Iterator[None]:
    """Nothing is repeated in here: the model's own code runs for every token."""
    host_pass = model._host_pass
    recorded, host_pass._replay = host_pass._replay, None
    host_pass._recordings = _RECORDINGS
    try:
        yield
    finally:
        host_pass._replay = recorded


def fed(model: PagedModel, prompt: list[int]) -> list:
    cache = make_prompt_cache(model)
    model.fill(mx.array([prompt]), cache)
    return cache


def logits_of(model: PagedModel, token: int, cache: list) -> np.ndarray:
    return np.array(model(mx.array([[token]]), cache=cache)[0, -1])


def test_repeated_tokens_have_the_bits_of_the_models_code_as_the_cache_grows(model):
    prompt = [7, 300, 12, 99, 450]
    cache, other = fed(model, prompt), fed(model, prompt)
    repeated = model._host_pass._replay.run
    ran = []
    model._host_pass._replay.run = lambda *args: ran.append(1) or repeated(*args)
    tokens = np.random.default_rng(3).integers(0, 512, 600).tolist()
    for token in tokens:
        got = logits_of(model, token, cache)
        with as_written(model):
            right = logits_of(model, token, other)
        assert (got == right).all()
    del model._host_pass._replay.run
    assert len(ran) > 590  # all but those for which a cache had no room
    for mine, its in zip(cache, other, strict=True):
        assert mine.offset == its.offset == len(prompt) + len(tokens)
        assert mx.array_equal(mine.keys[..., : mine.offset, :], its.keys[..., : its.offset, :])
        assert mx.array_equal(mine.values[..., : mine.offset, :], its.values[..., : its.offset, :])


def test_sequences_may_take_turns_and_go_back(model):
    def story() -> Iterator[np.ndarray]:
        one, two = fed(model, [5, 6, 7]), fed(model, list(range(100, 140)))
        for step in range(12):
            yield logits_of(model, 20 + step, one if step % 3 else two)
        for cache in one:
            cache.offset = 5
        yield logits_of(model, 77, one)
        yield logits_of(model, 78, two)

    got = list(story())
    with as_written(model):
        right = list(story())
    assert all((a == b).all() for a, b in zip(got, right, strict=True))


def test_a_near_tie_is_decided_as_the_models_code_decides_it(model):
    cache, other = fed(model, [5, 6, 7]), fed(model, [5, 6, 7])
    before = [layer.mlp.gate.matrix.b.copy() for layer in model.model.layers]
    matrices = [layer.mlp.gate.matrix for layer in model.model.layers]
    recorded, undecided = model._host_pass._replay, []
    for number, step in enumerate(recorded._tape.steps):
        if isinstance(step, Native) and step.otherwise is not None:
            recorded._by_python[number] = lambda step=step: undecided.append(1) or step.otherwise()
    try:
        for matrix in matrices:  # all experts are the same to the router
            matrix.w[:], matrix.s[:], matrix.b[:] = matrix.w[0], matrix.s[0], matrix.b[0]
        for token in range(40, 46):
            got = logits_of(model, token, cache)
            with as_written(model):
                assert (logits_of(model, token, other) == got).all()
        assert len(undecided) == 6 * len(matrices)
    finally:
        for matrix, biases in zip(matrices, before, strict=True):
            matrix.b[:] = biases


def test_a_token_that_is_stopped_midway_leaves_the_sequence_as_it_was(model):
    cache, other = fed(model, [5, 6, 7]), fed(model, [5, 6, 7])
    right = [logits_of(model, 9, other), logits_of(model, 10, other)]

    def stop_at(layer: int) -> None:
        if layer == 1:
            raise Aborted("stopped")

    model.watch.begin(stop_at)
    with pytest.raises(Aborted):
        logits_of(model, 9, cache)
    model.watch.end()
    assert {c.offset for c in cache} == {3}
    assert (logits_of(model, 9, cache) == right[0]).all()
    assert (logits_of(model, 10, cache) == right[1]).all()


def test_what_does_not_repeat_to_the_bit_is_never_repeated(model):
    host_pass, cache, other = model._host_pass, fed(model, [5, 6, 7]), fed(model, [5, 6, 7])
    with as_written(model):
        right = [logits_of(model, token, other) for token in (9, 10, 11)]
    recorded = host_pass._replay
    try:
        start = recorded._tape.starts[0]
        recorded._tape.starts[0] = lambda token, position: start(1, position)  # some other token's embedding
        host_pass._proofs = 0
        assert all((logits_of(model, t, cache) == row).all() for t, row in zip((9, 10, 11), right, strict=True))
        assert host_pass._replay is None
    finally:
        recorded._tape.starts[0] = start
        host_pass._replay, host_pass._proofs = recorded, _PROOFS


@pytest.mark.parametrize("architecture", ["qwen2_moe", "glm4_moe", "mixtral", "minimax"])
def test_other_architectures_repeat_too(architecture, tmp_path):
    """With shared experts, biases, routers that are functions of their own, dense layers."""
    tiny, config = tiny_model(architecture)
    model = engine.load(save(tmp_path / "tiny", tiny, config, {"group_size": 32, "bits": 4}), expert_bytes="all")
    assert model._host_pass._replay is not None
    cache, other = fed(model, [1, 2, 3, 4]), fed(model, [1, 2, 3, 4])
    for token in range(5, 25):
        got = logits_of(model, token, cache)
        with as_written(model):
            assert (logits_of(model, token, other) == got).all()
    model.close()


# --- what refuses to be recorded ---------------------------------------------------------------


def noted(function, *more) -> Tape:
    """The tape of a function of one token's activation [1, 1, 8]."""
    tape = Tape(HostArray, steps.of_ufunc, [])
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8).view(HostArray)
    tape.writes(x)
    with tape.running():
        tape.reads(function(x, *more))
    return tape


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + np.ones(8, np.float32),  # made by nobody knows whom
        lambda x: x.copy() * 2,
        lambda x: x[..., np.array([0, 3])] + 1,
        lambda x: x * (1 if x.max() > 3 else 2),
        lambda x: x * float(x[0, 0, 0]),
        lambda x: x + len(x[0, 0].tolist()),
        lambda x: host_mx.erf(x),
        lambda x: x.__setitem__(0, 1),
    ],
)
def test_what_may_be_different_for_the_next_token_is_refused(function):
    with pytest.raises(CannotRecord):
        noted(function)


@pytest.mark.parametrize(
    "use", [lambda p: p + 1, lambda p: 3 - p, lambda p: p < 4, lambda p: p == 4, lambda p: 1 if p else 2]
)
def test_a_position_is_no_number_to_compute_with(use):
    position = Position(4)
    assert int(position) == 4
    with pytest.raises(CannotRecord):
        use(position)


def test_numbers_become_numbers_again_when_the_recording_is_over():
    with pytest.raises(CannotRecord):
        noted(lambda x: x.copy() + 1)
    x = np.arange(3, dtype=np.float32).view(HostArray)
    x[0] = 5
    assert float(x[0]) == 5 and x.tolist() == [5, 1, 2] and type(x + 1) is HostArray


def test_a_failed_recording_leaves_the_caches_as_they_were(model):
    cache, tokens = fed(model, [5, 6, 7]), mx.array([[9]])
    with pytest.raises(CannotRecord), model._host_pass._exchanged():
        replay.record(lambda tokens, cache: cache[0].offset + 1, tokens, cache)
    assert [c.offset for c in cache] == [3] * len(cache)


# --- steps give NumPy's bits -------------------------------------------------------------------


def done_again(tape: Tape, x: HostArray, out: np.ndarray) -> np.ndarray:
    """What the steps make of new numbers in x."""
    x_now = np.random.default_rng(x.size).normal(size=x.shape).astype(np.float32)
    np.asarray(x)[...] = x_now
    np.asarray(out)[...] = np.nan
    moment = np.zeros(CACHES, np.int64)
    for step in tape.steps:
        assert isinstance(step, Native)  # compiled: not NumPy called again
        table = np.array([[step.function, step.arguments.ctypes.data]], np.int64)
        assert steps.run(table, 0, moment) == 1 and moment[UNDECIDED] == 0
    return np.asarray(out)


shapes = st.sampled_from([(1, 1, 1), (1, 1, 7), (1, 1, 33), (1, 4, 16), (1, 1, 8, 12), (2, 3, 5)])


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([np.add, np.subtract, np.multiply, np.divide]), st.integers(0, 4))
def test_arithmetic_of_numbers_is_numpys(shape, operation, which):
    rng = np.random.default_rng(which)
    x = rng.normal(size=shape).astype(np.float32).view(HostArray)
    others = [shape, (*shape[:-1], 1), (shape[-1],), (1,), None]
    y = 0.3 if others[which] is None else rng.normal(size=others[which]).astype(np.float32).view(HostArray)
    tape = Tape(HostArray, steps.of_ufunc, [])
    tape.writes(x, *([y] if isinstance(y, np.ndarray) else []))
    with tape.running():
        out = operation(x, y)
    again = done_again(tape, x, out)
    assert np.array_equal(again, operation(np.asarray(x), np.asarray(y) if isinstance(y, np.ndarray) else y))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 128), st.integers(1, 4))
def test_a_sum_of_values_is_in_numpys_order(width, rows):
    x = np.ones((1, rows, width), np.float32).view(HostArray)
    tape = Tape(HostArray, steps.of_ufunc, [])
    tape.writes(x)
    with tape.running():
        out = host_mx.sum(x, axis=-1, keepdims=True)
    assert np.array_equal(done_again(tape, x, out), np.asarray(x).sum(-1, keepdims=True))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(2, 70))
def test_a_sum_of_rows_is_in_numpys_order(rows, width):
    x = np.ones((1, 1, rows, width), np.float32).view(HostArray)
    tape = Tape(HostArray, steps.of_ufunc, [])
    tape.writes(x)
    with tape.running():
        out = x.sum(axis=-2)
    assert np.array_equal(done_again(tape, x, out), np.asarray(x).sum(-2))


@pytest.mark.parametrize("width", [8, 30, 64, 129, 2048])
def test_a_norm_and_shares_have_the_same_bits_wherever_they_are_compiled(width):
    x = np.ones((1, 3, width), np.float32).view(HostArray)
    weight = np.random.default_rng(1).normal(size=width).astype(np.float32)
    for function in (lambda x: rms_norm_of(x, weight, 1e-6), lambda x: host_mx.softmax(x, axis=-1)):
        tape = Tape(HostArray, steps.of_ufunc, [])
        tape.writes(x)
        with tape.running():
            out = function(x)
        assert np.array_equal(done_again(tape, x, out), function(x))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=4, max_size=20), st.data())
def test_experts_are_chosen_as_numpy_sorts_or_not_at_all(values, data):
    kth = data.draw(st.integers(0, len(values) - 1))
    x, order = np.array(values, np.float32), np.empty(len(values), np.int64)
    arguments = np.array([x.ctypes.data, order.ctypes.data, len(x), kth], np.int64)
    moment = np.zeros(CACHES, np.int64)
    stopped_at = steps.run(np.array([[steps.choose.address, arguments.ctypes.data]], np.int64), 0, moment)
    if len(set(values)) < len(values):
        assert stopped_at == 0
    else:
        assert stopped_at == 1 and (order == np.argsort(x)).all()
