"""What threads that share memory need and Numba lacks: atomic words, a call by address, a short pause."""

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INDEX = ir.IntType(64)


def native(function: Callable) -> Any:
    """numba's `intrinsic`, typed as what it gives: something that compiled code calls without the typing context."""
    return intrinsic(function)


def _word(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
    """The address of word args[1] of the int64 array args[0]."""
    return builder.gep(context.make_array(sig.args[0])(context, builder, args[0]).data, [args[1]])


@native
def atomic_add(typingctx, words, index, value):
    """words[index] += value for an int64 array; gives what was there before."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(context, builder, sig, args), args[2], "seq_cst")

    return types.int64(words, types.int64, types.int64), codegen


@native
def atomic_load(typingctx, words, index):
    """words[index] of an int64 array, as other threads left it."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_word(context, builder, sig, args), "seq_cst", 8)

    return types.int64(words, types.int64), codegen


@native
def atomic_store(typingctx, words, index, value):
    """words[index] = value for an int64 array, seen by other threads after all that was written before."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(context, builder, sig, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@native
def call_at(typingctx, address, argument, number):
    """Call the C function void(int64 argument, int64 number) at an address."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INDEX, _INDEX]).as_pointer()
        builder.call(builder.inttoptr(args[0], kind), [args[1], args[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@native
def pointer(typingctx, address):
    """The address as what `numba.carray` accepts."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@native
def fetch_ahead(typingctx, array, index):
    """Have the cache line of array[index], counted flat, brought near; an index beyond the array does no harm.

    A core that reads rows as they come waits for memory a third of the time: what it is told of early comes faster.
    """

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        at = builder.gep(context.make_array(sig.args[0])(context, builder, args[0]).data, [args[1]])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [builder.bitcast(at, byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@native
def pause(typingctx):
    """Let the other half of this core go on for some nanoseconds, where the processor knows how."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), codegen


@native
def give_way(typingctx):
    """Let another thread that is ready have this core: POSIX's sched_yield."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        function = builder.module.globals.get("sched_yield") or ir.Function(builder.module, kind, "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen
