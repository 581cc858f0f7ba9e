"""The CPU's own kernels against MLX's, for every shape and format they claim to know."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import deepseek_v3
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.models.switch_layers import SwitchGLU

import engine
from engine.kernels import products
from engine.kernels.cpu import CpuLinear, Matrix, experts_of, matrix_of
from engine.kernels.host_array import HostArray, host, host_aware, host_mx, with_mlx_arrays
from engine.kernels.host_pass import HostPass, _exchanges, _uncompiled
from engine.kernels.routing import whole_or_on_mlx
from engine.kernels.siblings import Siblings, Watcher
from engine.kernels.threads import each, split
from engine.loader import PagedModel
from engine.synth import synthesise


def close(got, right, tolerance=1e-5) -> bool:
    got, right = np.asarray(got), np.asarray(right)
    return got.shape == right.shape and np.abs(got - right).max() <= tolerance * max(np.abs(right).max(), 1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("group", "width"), [(32, 256), (32, 96), (64, 192), (128, 384)])
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_a_quantised_linear_is_mlxs(bits, group, width, rows):
    mx.random.seed(bits * group + rows)
    linear = nn.Linear(width, 131, bias=True).to_quantized(group, bits)
    x = mx.random.normal((1, rows, width))
    mx.eval(linear.parameters(), x)
    matrix = matrix_of(linear)
    assert matrix is not None
    assert close(CpuLinear(linear, matrix)(x), linear(x))


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_a_format_without_a_kernel_is_left_to_mlx(bits):
    linear = nn.Linear(128, 64).to_quantized(64, bits)
    mx.eval(linear.parameters())
    assert matrix_of(linear) is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("group", "width"), [(32, 256), (32, 96), (64, 192)])
def test_a_row_multiplied_with_others_gets_the_very_bits_it_gets_alone(bits, group, width):
    linear = nn.Linear(width, 77).to_quantized(group, bits)
    mx.eval(linear.parameters())
    matrix = matrix_of(linear)
    assert isinstance(matrix, Matrix)
    x = np.random.default_rng(bits).normal(size=(8, width)).astype(np.float32)
    alone = np.concatenate([matrix.times(row[None]) for row in x])
    for rows in range(2, 9):
        assert (matrix.times(x[:rows]) == alone[:rows]).all()


@pytest.mark.parametrize("rows", [1, 2, 9, 50, 200])
@pytest.mark.parametrize(("bits", "down_bits"), [(4, 4), (4, 8), (8, 8)])
def test_experts_are_mlxs_whether_many_tokens_want_one_or_few(rows, bits, down_bits, monkeypatch):
    monkeypatch.setattr(products, "_MOST_HIDDEN", 40 * 64 * 2)
    mx.random.seed(rows)
    module = SwitchGLU(128, 64, 8)
    module.gate_proj = module.gate_proj.to_quantized(32, bits)
    module.up_proj = module.up_proj.to_quantized(32, bits)
    module.down_proj = module.down_proj.to_quantized(32, down_bits)
    x = mx.random.normal((1, rows, 128))
    # The first is wanted by nearly all tokens, the last by hardly any.
    slots = np.random.default_rng(0).geometric(0.4, (1, rows, 3)).clip(1, 8).astype(np.uint32) - 1
    mx.eval(module.parameters(), x)
    kernel = experts_of(module)
    assert kernel is not None
    assert close(kernel(x, slots), module(x, mx.array(slots)))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300) | st.integers(500, 3000), st.sampled_from([(1, 1), (4, 2), (9, 3)]), st.integers(0, 5))
def test_attention_of_one_token_is_mlxs(tokens, heads, seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(1, heads[0], 1, 32)).astype(np.float32)
    k, v = (rng.normal(size=(1, heads[1], tokens, 32)).astype(np.float32) for _ in range(2))
    right = scaled_dot_product_attention(mx.array(q), mx.array(k), mx.array(v), None, scale=0.2, mask=None)
    got = host_mx.fast.scaled_dot_product_attention(host(q), host(k), host(v), scale=0.2, mask=None)
    assert type(got) is HostArray
    assert close(got, right)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dims", [16, 32])
@pytest.mark.parametrize("offset", [0, 7, 5000])
def test_rotary_positions_are_mlxs(traditional, dims, offset):
    x = np.random.default_rng(1).normal(size=(1, 3, 1, 32)).astype(np.float32)
    how = {"traditional": traditional, "base": 10000.0, "scale": 1.0, "offset": offset}
    assert close(host_mx.fast.rope(host(x), dims, **how), mx.fast.rope(mx.array(x), dims, **how), 1e-4)


def test_a_function_the_host_does_not_know_is_mlxs():
    x = np.random.default_rng(2).normal(size=(2, 5)).astype(np.float32)
    assert close(host_mx.erf(host(x)), mx.erf(mx.array(x)))
    assert close(host_mx.softmax(host(x), axis=0), mx.softmax(mx.array(x), axis=0))


def exchanging() -> HostPass:
    """A pass whose names are exchanged without a model."""
    host_pass = HostPass()
    host_pass._exchanges = list(_exchanges())
    return host_pass


def chosen_of(mlx, logits, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Experts [n, k] as routers choose them: the largest of the probabilities, and of their negatives the smallest."""
    shares = mlx.softmax(logits, axis=-1, precise=True)
    largest = mlx.argpartition(shares, kth=-k, axis=-1)[..., -k:]
    smallest = mlx.argpartition(-shares, kth=k - 1, axis=-1)[..., :k]
    return np.asarray(largest), np.asarray(smallest)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([0.0, 1e-9, 1e-7, 1e-6, 1.0]))
def test_the_experts_chosen_are_mlxs_also_where_scores_nearly_tie(seed, k, apart):
    rng = np.random.default_rng(seed)
    logits = (rng.integers(0, 4, (3, 16)) + apart * rng.normal(size=(3, 16))).astype(np.float32)
    for got, right in zip(chosen_of(host_mx, host(logits), k), chosen_of(mx, mx.array(logits), k), strict=True):
        assert (np.sort(got, -1) == np.sort(right, -1)).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-7, 1.0]), st.sampled_from([1, 4]))
def test_a_function_that_chooses_gives_mlxs_choice_in_groups_too(seed, apart, groups):
    """DeepSeek's router: sigmoid, a correction, the best groups, the best experts of them."""
    rng = np.random.default_rng(seed)
    gates = (rng.integers(-3, 4, (1, 5, 16)) + apart * rng.normal(size=(1, 5, 16))).astype(np.float32)
    correction = rng.normal(size=16).astype(np.float32)
    more = {"top_k": 4, "n_group": groups, "topk_group": 2 if groups > 1 else 1, "routed_scaling_factor": 2.5}
    router = deepseek_v3.group_expert_select
    on_host = host_aware(router, whole_or_on_mlx(_uncompiled(router), with_mlx_arrays(router)))
    right = router(mx.array(gates), mx.array(correction), *more.values(), True)
    with HostPass._exchanged(exchanging()):
        got = on_host(host(gates), mx.array(correction), *more.values(), True)
    (chosen, scores), (right_chosen, right_scores) = ([np.asarray(a) for a in pair] for pair in (got, right))
    order, right_order = np.argsort(chosen, -1), np.argsort(right_chosen, -1)
    assert (np.take_along_axis(chosen, order, -1) == np.take_along_axis(right_chosen, right_order, -1)).all()
    assert close(np.take_along_axis(scores, order, -1), np.take_along_axis(right_scores, right_order, -1))


def test_products_that_share_an_activation_are_computed_together_and_are_the_same():
    rng = np.random.default_rng(3)
    linears = [nn.Linear(128, rows, bias=False).to_quantized(32, 4) for rows in (500, 1, 1200)]
    mx.eval([linear.parameters() for linear in linears])
    matrices = [matrix for linear in linears if isinstance(matrix := matrix_of(linear), Matrix)]
    siblings = Siblings(matrices)
    for rows in (1, 3):
        x, other = (rng.normal(size=(rows, 128)).astype(np.float32) for _ in range(2))
        for matrix, linear in zip(matrices, linears, strict=True):
            assert close(siblings.times(matrix, x, x), linear(mx.array(x)))
        # One that is left out, or asked for again, costs time but is right.
        assert close(siblings.times(matrices[1], other, other), linears[1](mx.array(other)))
        assert close(siblings.times(matrices[2], x, x), linears[2](mx.array(x)))
        assert close(siblings.times(matrices[2], x, x), linears[2](mx.array(x)))


def test_who_shares_an_activation_is_learnt_by_watching():
    q, k, v, o, gate = (object() for _ in range(5))
    a, b, c = ([] for _ in range(3))
    watcher = Watcher()
    for asker, x in ((q, a), (k, a), (v, a), (o, b), (gate, c), (q, c)):
        watcher.saw(asker, x)
    assert watcher.families() == [[q, k, v]]


def test_the_model_itself_has_its_queries_keys_and_values_together(tiny_model):
    model = engine.load(tiny_model, expert_bytes="all")
    attention = model.layers[0].self_attn
    assert attention.q_proj._siblings is attention.k_proj._siblings is attention.v_proj._siblings is not None
    assert attention.o_proj._siblings is None
    model.close()


TINY = {"layers": 2, "experts": 8, "hidden": 128, "expert_hidden": 64, "top_k": 2, "vocab": 600}


@pytest.mark.parametrize("like", ["qwen3-moe", "olmoe", "mixtral", "deepseek-v3", "gpt-oss"])
def test_chunks_and_single_tokens_give_mlxs_logits_wherever_they_run(like, tmp_path):
    model = engine.load(synthesise(tmp_path / like, like, **TINY), expert_bytes="all")
    forward = super(PagedModel, model).__call__
    caches = [make_prompt_cache(model) for _ in range(2)]
    prompt = mx.array([list(range(20, 60))])
    for cache in caches:
        mx.eval(forward(prompt, cache=cache))
    # Past the cache's first 256 places, so that it has to grow.
    for token in range(20, 260):
        one = mx.array([[token]])
        assert close(model(one, cache=caches[0]), forward(one, cache=caches[1]), 1e-4)
    model.close()


def test_common_architectures_do_run_on_the_host(tmp_path):
    for like in ("qwen3-moe", "olmoe", "mixtral"):
        model = engine.load(synthesise(tmp_path / like, like, **TINY), expert_bytes="all")
        assert model._host_pass.usable, like
        model.close()


def test_what_other_models_see_is_untouched(tiny_model):
    model = engine.load(tiny_model, expert_bytes="all")
    model(mx.array([[5]]), cache=make_prompt_cache(model))
    import mlx_lm.models.qwen3_moe as module

    assert module.mx is mx
    cache = KVCache()
    keys, _ = cache.update_and_fetch(mx.ones((1, 1, 3, 4)), mx.ones((1, 1, 3, 4)))
    assert isinstance(keys, mx.array)
    model.close()


def test_a_host_that_computes_something_else_is_not_used(tiny_model, monkeypatch):
    model = engine.load(tiny_model, expert_bytes="all")
    forward = super(PagedModel, model).__call__
    wrong = HostPass()
    monkeypatch.setattr(HostPass, "run", lambda self, forward, tokens, cache: forward(tokens, cache=cache) * 1.001)
    wrong.check(model, forward)
    assert not wrong.usable
    model.close()


def test_split_and_each_do_all_of_the_work_once():
    done = np.zeros(1001, int)

    def add(lo: int, hi: int) -> None:
        done[lo:hi] += 1

    split(add, 1001, 10**9)
    each(lambda item: add(item, item + 1), range(1001))
    assert (done == 2).all()


def test_a_failure_on_another_thread_is_raised_here():
    def fail(item: int) -> None:
        if item == 7:
            raise ArithmeticError("seven")

    with pytest.raises(ArithmeticError):
        each(fail, range(20))
