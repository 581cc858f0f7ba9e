"""One row of a quantised matrix times an activation, written in LLVM's vectors rather than left to its vectoriser.

A group of 64 4-bit weights is eight words: one vector, one scale. Numba's loops over so few words are not vectorised,
and scales spread out word by word cost a third of the time (measured on a Zen 3 core: 10 against 14.5 G weights/s).
LLVM makes of these vectors whatever the machine has: one AVX register, two of NEON.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.kernels.atomics import native

FLOAT, INT, INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FAST = ("fast",)


def row_product(bits: int, lanes: int, groups_a_vector: int = 1) -> Any:
    """An intrinsic (planes, sums, w, s, b, row) -> float32: row `row` of the matrix (w, s, b) times the activation.

    Arrays as in `quantised`, all contiguous. A vector is `lanes` words; it holds one group or a part of one, or
    `groups_a_vector` whole groups.
    """
    floats, ints = ir.VectorType(FLOAT, lanes), ir.VectorType(INT, lanes)
    undefined = ir.Constant(floats, ir.Undefined)
    places = 32 // bits

    def lanes_of(*numbers: int) -> ir.Constant:
        return ir.Constant(ints, list(numbers))

    def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
        return builder.fadd(builder.fmul(x, y, flags=_FAST), z, flags=_FAST)

    def load_vector(builder: Any, base: Any, index: Any, kind: ir.VectorType) -> Any:
        vector = builder.load(builder.bitcast(builder.gep(base, [index]), kind.as_pointer()))
        vector.align = 4
        return vector

    def spread(builder: Any, numbers: list[Any]) -> Any:
        """A vector whose equal parts are the numbers."""
        vector = undefined
        for place, number in enumerate(numbers):
            vector = builder.insert_element(vector, number, ir.Constant(INT, place))
        part = lanes // len(numbers)
        return builder.shuffle_vector(vector, undefined, lanes_of(*(lane // part for lane in range(lanes))))

    def total_of(builder: Any, vector: Any) -> Any:
        step = lanes
        while step > 1:
            step //= 2
            turned = builder.shuffle_vector(vector, undefined, lanes_of(*((n + step) % lanes for n in range(lanes))))
            vector = builder.fadd(vector, turned, flags=_FAST)
        return builder.extract_element(vector, ir.Constant(INT, 0))

    def unscaled(builder: Any, planes: list[Any], words: Any, at: Any) -> Any:
        """The values of a vector of words times their activations, summed over the places of a word."""
        total = None
        for place, plane in enumerate(planes):
            x = load_vector(builder, plane, at, floats)
            if place == places - 1:
                value = builder.lshr(words, lanes_of(*[bits * place] * lanes))
            else:
                value = builder.and_(words, lanes_of(*[((1 << bits) - 1) << (bits * place)] * lanes))
            value = builder.sitofp(value, floats)
            total = builder.fmul(x, value, flags=_FAST) if total is None else multiply_add(builder, x, value, total)
        return total

    @native
    def product(typingctx, planes, sums, w, s, b, row):
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            views = [context.make_array(t)(context, builder, a) for t, a in zip(sig.args[:5], args[:5], strict=True)]
            planes_at, sums_at, w_at, s_at, b_at = (view.data for view in views)
            words = cgutils.unpack_tuple(builder, views[2].shape)[1]
            groups = cgutils.unpack_tuple(builder, views[3].shape)[1]
            w_at = builder.gep(w_at, [builder.mul(args[5], words)])
            s_at, b_at = (builder.gep(at, [builder.mul(args[5], groups)]) for at in (s_at, b_at))
            planes_at = [builder.gep(planes_at, [builder.mul(INDEX(place), words)]) for place in range(places)]
            steps = builder.sdiv(groups, INDEX(groups_a_vector))
            vectors = builder.sdiv(builder.sdiv(words, INDEX(lanes)), steps)
            scaled = cgutils.alloca_once_value(builder, ir.Constant(floats, [0.0] * lanes))
            biases = cgutils.alloca_once_value(builder, ir.Constant(FLOAT, 0.0))
            # In a loop the memory is the last round's, and is given its value here.
            builder.store(ir.Constant(floats, [0.0] * lanes), scaled)
            builder.store(ir.Constant(FLOAT, 0.0), biases)
            with cgutils.for_range(builder, steps) as step:
                first = builder.mul(step.index, INDEX(groups_a_vector))
                here = [builder.add(first, INDEX(group)) for group in range(groups_a_vector)]
                scale = spread(builder, [builder.load(builder.gep(s_at, [group])) for group in here])
                for group in here:
                    summed, bias = (builder.load(builder.gep(at, [group])) for at in (sums_at, b_at))
                    builder.store(multiply_add(builder, summed, bias, builder.load(biases)), biases)
                with cgutils.for_range(builder, vectors) as vector:
                    index = builder.add(builder.mul(step.index, vectors), vector.index)
                    at = builder.mul(index, INDEX(lanes))
                    part = unscaled(builder, planes_at, load_vector(builder, w_at, at, ints), at)
                    builder.store(multiply_add(builder, scale, part, builder.load(scaled)), scaled)
            return builder.fadd(total_of(builder, builder.load(scaled)), builder.load(biases), flags=_FAST)

        return types.float32(planes, sums, w, s, b, row), codegen

    return product
