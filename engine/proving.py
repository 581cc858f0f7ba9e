"""Proves on this machine, with this checkpoint, that paging changes nothing: layer by layer, and token by token.

A reply is made as always, paged. Then mlx-lm's own model passes over the same tokens once, its weights read a layer at
a time and forgotten again, so that no memory for the whole is needed; each layer's output is compared with what the
paged layer makes of the same input.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from engine.bench import random_prompt
from engine.decode import prefill
from engine.errors import CheckpointError
from engine.loader import PagedModel, load
from engine.paged import PagedExperts
from engine.stand_in import StandIn

# float32 sums in another order; identical where the same kernels run.
TOLERANCE = 1e-4
# A router's near-tie may fall the other way, but hardly ever.
MOST_OTHER_CHOICES = 0.001


@dataclass(frozen=True)
class LayerProof:
    """`apart`: the largest difference of a layer's outputs, relative to the largest output; 0 means identical bits.

    `other_choices` of `tokens` tokens had a router's near-tie fall the other way; those outputs are not compared.
    """

    layer: int
    apart: float
    other_choices: int
    tokens: int


@dataclass(frozen=True)
class Proof:
    """What was compared, and whether it was equal."""

    layers: list[LayerProof]
    tokens: list[int]
    reference_tokens: list[int]
    logits_apart: float

    @property
    def holds(self) -> bool:
        """Whether the tokens are the same and no layer differs by more than rounding."""
        others = sum(layer.other_choices for layer in self.layers)
        looked_at = sum(layer.tokens for layer in self.layers)
        return (
            self.tokens == self.reference_tokens
            and all(layer.apart <= TOLERANCE for layer in self.layers)
            and others <= MOST_OTHER_CHOICES * looked_at
        )


def prove(
    folder: Path,
    *,
    memory_bytes: int | None = None,
    expert_bytes: int | float | str | None = None,
    prompt_tokens: int = 70,
    tokens: int = 8,
    on_layer: Callable[[LayerProof, int], None] = lambda *_: None,
) -> Proof:
    """Compare a checkpoint paged and as mlx-lm computes it, for a random prompt (seed 0) and `tokens` greedy tokens.

    `on_layer(proof, layers)` is called after each layer. Raises EngineError.
    """
    budget = "auto" if memory_bytes is None else memory_bytes
    model = load(folder, memory_bytes=budget, expert_bytes=expert_bytes)
    prompt = random_prompt(model, prompt_tokens)
    made, logits = _reply(model, prompt, tokens)
    proofs: list[LayerProof] = []

    def note(proof: LayerProof) -> None:
        proofs.append(proof)
        on_layer(proof, total)

    reference = _reference(folder)
    caches = make_prompt_cache(reference), make_prompt_cache(model)
    total = _put_side_by_side(reference, model, caches, note)
    right = reference(mx.array([prompt + made[:-1]]), cache=caches[0])
    right = np.array(right[0, -len(made) :].astype(mx.float32))
    model.close()
    apart = float(np.abs(logits - right).max() / np.abs(right).max())
    return Proof(proofs, made, right.argmax(-1).tolist(), apart)


def _reply(model: PagedModel, prompt: list[int], tokens: int) -> tuple[list[int], np.ndarray]:
    """`tokens` greedy tokens as the engine makes them, and the logits [tokens, V] each was chosen by."""
    cache, made, rows = make_prompt_cache(model), [prompt[-1]], []
    for _ in prefill(model, prompt[:-1], cache):
        pass
    for _ in range(tokens):
        rows.append(np.array(model(mx.array([made[-1:]]), cache=cache)[0, -1].astype(mx.float32)))
        made.append(int(rows[-1].argmax()))
    return made[1:], np.stack(rows)


def _reference(folder: Path) -> Any:
    """mlx-lm's own model with weights that are read when they are used; on a CPU in float32, as we compute there."""
    try:
        reference, _ = mlx_lm.utils.load_model(folder, lazy=True)
    except Exception as error:
        raise CheckpointError(
            f"mlx-lm itself cannot load {folder}, so there is nothing to compare with. "
            f"If it is a copy that Pagoda packed, prove the model it was made from. ({str(error).splitlines()[0]})"
        ) from error
    if mx.default_device() == mx.cpu:
        reference.set_dtype(mx.float32)
    return reference


def _put_side_by_side(
    reference: nn.Module, model: PagedModel, caches: tuple[list, list], note: Callable[[LayerProof], None]
) -> int:
    """Make each layer of `reference` compute the paged model's layer too; how many layers there are."""
    paths = [path for path, module in model.named_modules() if isinstance(module, PagedExperts)]
    if not paths:
        raise CheckpointError("This model has no experts, so nothing of it is paged and there is nothing to prove.")
    steps = paths[0].split(".")
    where = next(place for place, step in enumerate(steps) if step.isdigit())
    container = ".".join(steps[:where])
    theirs, ours = _found(reference, container), _found(model, container)
    for path in paths:
        for tree in (reference, model):
            tree.update_modules(tree_unflatten([(path, Choices(_found(tree, path)))]))
    pairs = list(zip(theirs, ours, strict=True))
    compared = [(f"{container}.{number}", Compared(number, *pair, caches, note)) for number, pair in enumerate(pairs)]
    reference.update_modules(tree_unflatten(cast(Any, compared)))
    return len(compared)


def _found(tree: Any, path: str) -> Any:
    for step in path.split("."):
        tree = tree[int(step)] if step.isdigit() else getattr(tree, step)
    return tree


class Choices(StandIn):
    """Stands for a module of experts and remembers which were chosen."""

    def __call__(self, x: mx.array, indices: mx.array, *more: Any, **named: Any) -> mx.array:
        self._chosen = np.sort(np.array(indices).reshape(-1, indices.shape[-1]), -1)
        return self.original(x, indices, *more, **named)


class Compared(StandIn):
    """Stands for a layer of the reference: computes it, forgets its weights, and compares the paged model's layer."""

    def __init__(
        self,
        number: int,
        original: nn.Module,
        paged: nn.Module,
        caches: tuple[list, list],
        note: Callable[[LayerProof], None],
    ):
        super().__init__(original)
        self._number, self._paged, self._note = number, [paged], note
        self._own_cache = {id(theirs): ours for theirs, ours in zip(*caches, strict=True)}

    def __call__(self, *args: Any, **named: Any) -> Any:
        own_args = [self._own(value) for value in args]
        own_named = {name: self._own(value) for name, value in named.items()}
        right = self.original(*args, **named)
        mx.eval(right)
        theirs = _choices(self.original)
        self.original.update(tree_map(lambda _: mx.zeros(1), self.original.parameters()))
        mx.clear_cache()
        paged = self._paged[0]
        mine = paged(*own_args, **own_named)
        a, b = (np.array(_first(out).astype(mx.float32)) for out in (mine, right))
        a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
        same = np.ones(len(b), bool)
        for chosen, other in zip(_choices(paged), theirs, strict=True):
            if len(chosen) == len(same):
                same &= (chosen == other).all(-1)
        largest = np.abs(b[same]).max(initial=1e-30)
        apart = float(np.abs(a[same] - b[same]).max(initial=0.0) / largest)
        self._note(LayerProof(self._number, apart, int((~same).sum()), len(same)))
        return right

    def _own(self, value: Any) -> Any:
        """The argument for the paged layer: its own caches, and copies of what layers write to."""
        if isinstance(value, list | tuple):
            return type(value)(self._own(one) for one in value)
        if id(value) in self._own_cache:
            return self._own_cache[id(value)]
        return value if isinstance(value, mx.array | nn.Module) else copy.deepcopy(value)


def _choices(layer: nn.Module) -> list[np.ndarray]:
    return [module._chosen for _, module in sorted(layer.named_modules()) if isinstance(module, Choices)]


def _first(out: Any) -> mx.array:
    """A layer's hidden state [B, L, D]; some layers give more besides."""
    return cast(Any, tree_flatten(out))[0][1] if isinstance(out, list | tuple) else out
