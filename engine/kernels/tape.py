"""A token's way through a model's code, written down while one takes it, so that the next need not take it again.

mlx-lm's Python code does the same for every token: it makes views, and calls functions of arrays. So while one token
passes, each function notes what it read, what it wrote, and how to do that again in the same memory. Whatever a token
could do differently the next time refuses to be noted: where it stands is no number but a Position, and an array that
no step has written is read by none.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np


class CannotRecord(Exception):
    """Something here is not known to be the same for the next token."""


@dataclass(frozen=True)
class Native:
    """A step in compiled code: the address of a C function and its arguments, see `addresses`. Where the function is
    undecided, `otherwise` does the step."""

    function: int
    arguments: np.ndarray
    otherwise: Callable[[], None] | None = None


Step = Native | Callable[[], None]

current: "Tape | None" = None
"""The tape of the token that is passing, where one is recorded."""


class Position:
    """Where the recorded token stands: for those who know that it moves, and ask for `int(position)`."""

    def __init__(self, value: int):
        self._value = value

    def __int__(self) -> int:
        return self._value


def _refuse(*_: object, **__: object) -> Any:
    raise CannotRecord("what the code does depends on a number that is another one for the next token")


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "mod", "floordiv", "lt", "le", "gt", "ge", "eq", "bool"):
    setattr(Position, f"__{_name}__", _refuse)

# What makes numbers of a HostArray, or changes it unseen.
_UNSEEN = ("__bool__", "__int__", "__float__", "__index__", "__setitem__", "item", "tolist")


class Tape:
    """What a token does, with its sequence's `caches`. `arrays` is the class whose operations are noted."""

    def __init__(
        self,
        arrays: type[np.ndarray],
        known: Callable[..., Sequence[Any] | None],
        caches: Sequence[Any],
    ):
        """`known(ufunc, method, inputs, out, kwargs)` gives a Native step's function and arguments where there is
        compiled code for a NumPy function; any other is called again."""
        self.steps: list[Step] = []
        self.starts: list[Callable[[int, int], None]] = []
        self.caches = len(caches)
        self._numbers = {id(cache): number for number, cache in enumerate(caches)}
        self._arrays, self._known = arrays, known
        self._held: list[Any] = []  # steps know addresses: this keeps what lies there
        self._written: set[int] = set()
        self._caches: dict[int, int] = {}
        self._seen: list[np.ndarray] = []
        self._moving: dict[Any, list[np.ndarray]] = {}

    @contextmanager
    def running(self):
        """Everything that happens to the arrays in here is noted."""
        global current
        current = self
        _listen(self._arrays)
        try:
            yield
        finally:
            _be_deaf(self._arrays)
            current = None
            self._caches.clear()  # these arrays are the sequence's alone
            self._seen.clear()

    @contextmanager
    def stopped(self):
        """Nothing that happens in here is noted."""
        global current
        current = None
        _be_deaf(self._arrays)
        try:
            yield
        finally:
            current = self
            _listen(self._arrays)

    # --- what kernels note -----------------------------------------------------------------------

    def native(
        self,
        function: Any,
        arguments: Sequence[Any],
        reads: Sequence[np.ndarray],
        writes: Sequence[np.ndarray],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """A step of compiled code, a Numba C function. Of `arguments`, arrays become addresses and floats float64."""
        self.reads(*reads)
        words = np.empty(len(arguments), np.int64)
        for place, argument in enumerate(arguments):
            if isinstance(argument, float):
                words.view(np.float64)[place] = argument
            else:
                words[place] = address(argument) if isinstance(argument, np.ndarray) else argument
        self._held.append(arguments)
        self.steps.append(Native(function.address, words, otherwise))
        self.writes(*writes)

    def again(self, call: Callable[[], None], reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """A step of Python code."""
        self.reads(*reads)
        self.steps.append(call)
        self.writes(*writes)

    def at_start(self, fill: Callable[[int, int], None], *writes: np.ndarray) -> None:
        """Before the first step, `fill(token, position)` writes what depends on these alone."""
        self.starts.append(fill)
        self.writes(*writes)

    def moving(self, key: Any, position: object, compute: Callable[[int], Sequence[np.ndarray]]) -> list[np.ndarray]:
        """What `compute` makes of the token's position, then of each next one's; once for all who ask with a key."""
        if not isinstance(position, Position):
            raise CannotRecord("a position that is not the cache's")
        if key not in self._moving:
            mine = self._moving[key] = [np.array(array) for array in compute(int(position))]

            def fill(_: int, position: int) -> None:
                for array, new in zip(mine, compute(position), strict=True):
                    array[...] = new

            self.at_start(fill, *mine)
        return self._moving[key]

    def number_of(self, cache: object) -> int:
        """Which of the sequence's caches this is."""
        if id(cache) not in self._numbers:
            raise CannotRecord("a cache that is not the sequence's")
        return self._numbers[id(cache)]

    def is_cache(self, number: int, *arrays: np.ndarray) -> None:
        """These are the keys and values of a cache, which are another sequence's the next time."""
        for array in arrays:
            self._caches[id(_owner(array))] = number
            self._seen.append(array)

    def cache_of(self, keys: np.ndarray, values: np.ndarray) -> int:
        """Which cache these are all keys and values of, from its first token on."""
        numbers = {self._caches.get(id(_owner(array))) for array in (keys, values)}
        number = numbers.pop()
        if numbers or number is None or any(address_of(x) != address_of(_owner(x)) for x in (keys, values)):
            raise CannotRecord("attention to something else than a whole cache")
        return number

    def reads(self, *arrays: np.ndarray) -> None:
        """A step reads these. Raises CannotRecord unless a step has written them or they are the model's own."""
        for array in arrays:
            owner = _owner(array)
            constant = owner.base is not None  # MLX's memory, or a file's
            if id(owner) in self._caches or not (constant or id(owner) in self._written):
                raise CannotRecord("an array whose making was not seen")

    def writes(self, *arrays: np.ndarray) -> None:
        """A step has written these."""
        for array in arrays:
            self._written.add(id(_owner(array)))
            self._held.append(array)

    # --- what NumPy and models do ----------------------------------------------------------------

    def ufunc(self, ufunc: np.ufunc, method: str, inputs: Sequence[Any], out: Any, kwargs: dict[str, Any]) -> Any:
        """Call a NumPy function of numbers and note it."""
        plain = [_plain(x) for x in inputs]
        to = None if out is None else tuple(_plain(x) for x in out)
        if to is not None and any(id(_owner(x)) not in self._written for x in to):
            raise CannotRecord("an array that is not the token's is changed")
        result = getattr(ufunc, method)(*plain, **kwargs, **({} if to is None else {"out": to}))
        if not isinstance(result, np.ndarray):
            raise CannotRecord("a result that is not an array")
        reads = [x for x in plain if isinstance(x, np.ndarray)]
        if known := self._known(ufunc, method, plain, result, kwargs):
            self.native(known[0], known[1:], reads, [result])
        else:
            self.again(lambda: getattr(ufunc, method)(*plain, out=result, **kwargs), reads, [result])
        return result.view(self._arrays)

    def whole(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function of arrays and note it as a step of its own; or no step, where it gives but views of them."""
        with self.stopped():
            result = function(*args, **kwargs)
        reads = [x for x in _arrays_in([*args, *kwargs.values()]) if isinstance(x, np.ndarray)]
        self.reads(*reads)
        found, known = _arrays_in([result]), {id(_owner(x)) for x in reads}
        if not found or not all(isinstance(x, np.ndarray) for x in found):
            raise CannotRecord("a result that is not an array of the host's")
        if all(id(_owner(x)) in known for x in found):
            return result
        mine = [np.array(x) for x in found]

        def call() -> None:
            for array, new in zip(mine, _arrays_in([function(*args, **kwargs)]), strict=True):
                array[...] = new

        self.again(call, (), mine)
        views = [array.view(self._arrays) for array in mine]
        return views[0] if isinstance(result, np.ndarray) else type(result)(views)


def whole(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs); where a tape is running it is one step of it."""
    return function(*args, **kwargs) if current is None else current.whole(function, args, kwargs)


def address(array: np.ndarray) -> int:
    """Where a contiguous array lies. Raises CannotRecord for another one."""
    if not array.flags.c_contiguous:
        raise CannotRecord("an array in pieces")
    return address_of(array)


def address_of(array: np.ndarray) -> int:
    """Where an array begins."""
    return array.__array_interface__["data"][0]


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory it is."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _arrays_in(values: Sequence[Any]) -> list[Any]:
    flat = [inner for value in values for inner in (value if isinstance(value, list | tuple) else [value])]
    return [value for value in flat if isinstance(value, np.ndarray | mx.array)]


def _plain(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, np.ndarray | mx.array) else x


def _on_ufunc(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
    return current.ufunc(ufunc, method, inputs, out, kwargs) if current is not None else NotImplemented


def _on_function(self: Any, function: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return current.whole(function, args, kwargs) if current is not None else NotImplemented


def _view(self: Any, key: Any) -> Any:
    part = np.ndarray.__getitem__(self, key)
    return part if isinstance(part, np.ndarray) else _refuse()


_HEARD = {
    "__getitem__": _view,
    "__array_ufunc__": _on_ufunc,
    "__array_function__": _on_function,
    **dict.fromkeys(_UNSEEN, _refuse),
}


def _listen(arrays: type) -> None:
    for name, heard in _HEARD.items():
        setattr(arrays, name, heard)


def _be_deaf(arrays: type) -> None:
    for name in _HEARD:
        delattr(arrays, name)
