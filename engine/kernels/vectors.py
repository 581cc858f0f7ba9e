"""A row of a quantised matrix times a few activations, written in LLVM's vectors rather than left to its vectoriser.

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
# A product and a sum may become one instruction; nothing else may change, so an activation's result is the same
# whether it is multiplied alone or with others.
_FUSED = ("contract",)


def row_product(bits: int, lanes: int, groups_a_vector: int = 1, tokens: int = 1) -> Any:
    """An intrinsic (xs, sums, w, s, b, row, ys): row `row` of the matrix (w, s, b) times several activations.

    `xs`, `sums` and `ys` are int64 [tokens]: the addresses of each activation as `quantised.lay_out` puts it, of the
    sums of its groups, and of the results, of which number `row` is written. The others are as in `quantised`,
    contiguous. A vector is `lanes` words; it holds one group or a part of one, or `groups_a_vector` whole groups.
    """
    floats, ints = ir.VectorType(FLOAT, lanes), ir.VectorType(INT, lanes)
    undefined, zero = ir.Constant(floats, ir.Undefined), ir.Constant(floats, [0.0] * lanes)
    places = 32 // bits

    def lanes_of(*numbers: int) -> ir.Constant:
        return ir.Constant(ints, list(numbers))

    def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
        return builder.fadd(builder.fmul(x, y, flags=_FUSED), z, flags=_FUSED)

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
            vector = builder.fadd(vector, turned)
        return builder.extract_element(vector, ir.Constant(INT, 0))

    def unscaled(builder: Any, xs: list[Any], words: Any, at: Any) -> list[Any]:
        """The values of a vector of words times each activation, summed over the places of a word."""
        totals: list[Any] = []
        for place in range(places):
            if place == places - 1:
                value = builder.lshr(words, lanes_of(*[bits * place] * lanes))
            else:
                value = builder.and_(words, lanes_of(*[((1 << bits) - 1) << (bits * place)] * lanes))
            value = builder.sitofp(value, floats)
            parts = [load_vector(builder, x, builder.add(at, INDEX(place * lanes)), floats) for x in xs]
            if place == 0:
                totals = [
                    builder.fmul(part, value) for part in parts
                ]  # not fused, or the compiler could choose which is
            else:
                totals = [multiply_add(builder, part, value, total) for part, total in zip(parts, totals, strict=True)]
        return totals

    def addresses(context: Any, builder: Any, kind: Any, array: Any) -> list[Any]:
        data = context.make_array(kind)(context, builder, array).data
        numbers = [builder.load(builder.gep(data, [INDEX(token)])) for token in range(tokens)]
        return [builder.inttoptr(number, FLOAT.as_pointer()) for number in numbers]

    @native
    def product(typingctx, xs, sums, w, s, b, row, ys):
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            xs_at, sums_at, ys_at = (addresses(context, builder, sig.args[n], args[n]) for n in (0, 1, 6))
            views = [context.make_array(sig.args[n])(context, builder, args[n]) for n in (2, 3, 4)]
            words, groups = (cgutils.unpack_tuple(builder, view.shape)[1] for view in views[:2])
            w_at = builder.gep(views[0].data, [builder.mul(args[5], words)])
            s_at, b_at = (builder.gep(view.data, [builder.mul(args[5], groups)]) for view in views[1:])
            steps = builder.sdiv(groups, INDEX(groups_a_vector))
            vectors = builder.sdiv(builder.sdiv(words, INDEX(lanes)), steps)
            scaled = [cgutils.alloca_once_value(builder, zero) for _ in range(tokens)]
            biases = [cgutils.alloca_once_value(builder, ir.Constant(FLOAT, 0.0)) for _ in range(tokens)]
            for token in range(tokens):  # in a loop the memory is the last round's, and is given its value here
                builder.store(zero, scaled[token])
                builder.store(ir.Constant(FLOAT, 0.0), biases[token])
            with cgutils.for_range(builder, steps) as step:
                first = builder.mul(step.index, INDEX(groups_a_vector))
                here = [builder.add(first, INDEX(group)) for group in range(groups_a_vector)]
                scale = spread(builder, [builder.load(builder.gep(s_at, [group])) for group in here])
                for group in here:
                    bias = builder.load(builder.gep(b_at, [group]))
                    for total, sums_of_one in zip(biases, sums_at, strict=True):
                        summed = builder.load(builder.gep(sums_of_one, [group]))
                        builder.store(multiply_add(builder, summed, bias, builder.load(total)), total)
                with cgutils.for_range(builder, vectors) as vector:
                    index = builder.add(builder.mul(step.index, vectors), vector.index)
                    values = load_vector(builder, w_at, builder.mul(index, INDEX(lanes)), ints)
                    parts = unscaled(builder, xs_at, values, builder.mul(index, INDEX(lanes * places)))
                    for total, part in zip(scaled, parts, strict=True):
                        builder.store(multiply_add(builder, scale, part, builder.load(total)), total)
            for token in range(tokens):
                result = builder.fadd(total_of(builder, builder.load(scaled[token])), builder.load(biases[token]))
                builder.store(result, builder.gep(ys_at[token], [args[5]]))
            return context.get_dummy_value()

        return types.void(xs, sums, w, s, b, row, ys), codegen

    return product
