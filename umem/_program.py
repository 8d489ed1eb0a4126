"""From a graph of operations to what computes it: the types of every operation, and programs of the register machine.

src/kernels/um_evaluate_abi.h says what a program is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from umem import _core
from umem._expression import fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from umem._expression import Expression, Split

    Dtype = np.dtype[Any]
    #: of a number that is no array: int, float or complex for Python's, else its dtype
    Type = Dtype | type

INPUTS, REGISTERS, STEPS, CONSTANTS = _core.evaluate_limits
_CONSTANT, _PREVIOUS, _NONE = 0x80, 0xFE, 0xFF

#: what fits into the 32-bit cells of a narrow machine, and what needs a wide one
_NARROW = frozenset(map(np.dtype, ("?", "i1", "u1", "i2", "u2", "i4", "f4")))
_WIDE = frozenset(map(np.dtype, ("u4", "i8", "f8")))
_BOOL = np.dtype(bool)
#: integer operations whose result may need more bits than their type has
_GROW = frozenset(
    ("add", "subtract", "multiply", "negative", "absolute", "left_shift", "invert", "floor_divide")
)
#: what operations on bool are to the machine
_OF_BOOL = {
    "add": "bitwise_or",
    "multiply": "bitwise_and",
    "maximum": "bitwise_or",
    "minimum": "bitwise_and",
    "invert": "logical_not",
}
#: an integer to the power of such a number is made of multiplications
_MOST_POWER = 64


@dataclass(frozen=True)
class Typed:
    """Types as NumPy resolves them, operation by operation (NEP 50)."""

    expression: Expression
    split: Split
    types: Mapping[int, Type]  # of names that are arrays, of roots, of operations
    loops: Mapping[
        int, tuple[Dtype, ...]
    ]  # of operations: types that the operands are converted to

    @cached_property
    def result(self) -> Dtype:
        return np.dtype(self.types[len(self.expression.nodes) - 1])

    @cached_property
    def is_wide(self) -> bool:
        """Whether there is a type in it that needs 64-bit cells. What is stored between two passes may."""
        seen = {dtype for loop in self.loops.values() for dtype in loop}
        seen |= {t for i, t in self.types.items() if i not in self.split.roots}  # type: ignore[misc]
        return not seen.isdisjoint(_WIDE)


def resolve(expression: Expression, split: Split, known: Mapping[int, Type]) -> Typed:
    """`known`: the types of names that are arrays and of roots. Raises TypeError pointing at the operation."""
    types = dict(known)
    loops: dict[int, tuple[Dtype, ...]] = {}
    for i in split.operations:
        node = expression.nodes[i]
        given = [types[j] for j in node.args]
        try:
            if node.kind == "where":
                values = (t(0) if isinstance(t, type) else t for t in given[1:])
                types[i] = result = np.result_type(*values)
                loops[i] = (_BOOL, result, result)
            else:
                ufunc = getattr(np, node.kind)
                *inputs, result = ufunc.resolve_dtypes((*given, None))
                types[i], loops[i] = result, tuple(inputs)
        except TypeError as error:
            fail(TypeError, f"{node.kind}: {error}", expression.text, node.at)
    return Typed(expression, split, types, loops)


# --- programs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """A program, and what it reads and writes."""

    steps: bytes
    constants: tuple[tuple[int, Dtype], ...]  # roots, as which type
    wide: bool
    inputs: tuple[int, ...]  # nodes: arrays, or results of earlier passes
    node: int  # whose value it computes
    dtype: Dtype


class _Unsupported(Exception):
    """The machine has no such type or operation."""


class _TooLarge(Exception):
    """More inputs, registers, steps or constants than there are."""


# A value in a program: of an instruction, an input or a constant, with its number there.
Ref = tuple[str, int]


def passes(
    typed: Typed, exponents: Mapping[int, Any], dtype: Dtype | None
) -> tuple[Pass, ...] | None:
    """Programs that compute an expression, mostly one; None when the machine cannot.

    exponents   values of roots that are exponents
    dtype       of the result as it is stored: the typed one or what it is cast to; None: the typed one
    """
    root = len(typed.expression.nodes) - 1
    found: list[Pass] = []
    stored: set[int] = set()  # nodes that earlier passes compute
    try:
        while True:
            try:
                found.append(_Lowering(typed, exponents, stored).program(root, dtype))
            except _TooLarge:
                found.append(_largest_part(typed, exponents, stored))
                stored.add(found[-1].node)
            else:
                return tuple(found)
    except _Unsupported:
        return None


def _largest_part(typed: Typed, exponents: Mapping[int, Any], stored: set[int]) -> Pass:
    """The program of the largest part of an expression that has one."""
    root = len(typed.expression.nodes) - 1
    below: dict[int, frozenset[int]] = {}  # operations that a node's value takes
    for i in typed.split.operations:
        parts = (below.get(j, frozenset()) for j in typed.expression.nodes[i].args)
        below[i] = frozenset() if i in stored else frozenset((i,)).union(*parts)
    for i in sorted(below, key=lambda i: -len(below[i])):
        if i in stored or i == root or len(below[i]) > STEPS:
            continue
        try:
            return _Lowering(typed, exponents, stored).program(i, None)
        except _TooLarge:
            pass
    raise _Unsupported


class _Lowering:
    def __init__(self, typed: Typed, exponents: Mapping[int, Any], stored: set[int]) -> None:
        self.typed = typed
        self.exponents = exponents
        self.stored = stored
        self.inputs: dict[int, int] = {}
        self.constants: dict[tuple[int, Dtype], int] = {}
        self.code: list[tuple[str, tuple[Ref, ...]]] = []
        self.known: dict[tuple[str, tuple[Ref, ...]], int] = {}
        self.wide = typed.is_wide

    def program(self, node: int, dtype: Dtype | None) -> Pass:
        computed = np.dtype(self.typed.types[node])
        dtype = computed if dtype is None else dtype
        self.wide = self.wide or dtype in _WIDE
        values: dict[int, Ref] = {}
        for i in self.needed(node):
            values[i] = self.value(i, values)
        result = self.convert(values[node], computed, dtype)
        if result[0] != "value":
            result = self.emit("copy", result)
        if len(self.inputs) > INPUTS or len(self.constants) > CONSTANTS:
            raise _TooLarge
        steps = b"".join(self.allocate(self.order(result[1])))
        return Pass(steps, tuple(self.constants), self.wide, tuple(self.inputs), node, dtype)

    def needed(self, node: int) -> list[int]:
        """Arrays and operations that the node's value takes, operands first."""
        nodes = self.typed.expression.nodes
        found, waiting = {node}, [node]
        while waiting:
            i = waiting.pop()
            if i in self.stored and i != node:
                continue
            more = {j for j in nodes[i].args if j not in self.typed.split.roots} - found
            found |= more
            waiting += more
        return sorted(found)

    # --- instructions

    def see(self, dtype: Dtype) -> Dtype:
        if dtype not in _NARROW and dtype not in _WIDE:
            raise _Unsupported
        return dtype

    def emit(self, name: str, *args: Ref) -> Ref:
        key = (name, args)
        if key not in self.known:
            self.known[key] = len(self.code)
            self.code.append(key)
        return ("value", self.known[key])

    def value(self, i: int, values: Mapping[int, Ref]) -> Ref:
        node = self.typed.expression.nodes[i]
        if not node.args or i in self.stored:
            self.see(np.dtype(self.typed.types[i]))
            return ("input", self.inputs.setdefault(i, len(self.inputs)))
        loop, result = self.typed.loops[i], np.dtype(self.typed.types[i])
        self.see(result)
        if node.kind == "true_divide":  # NumPy's loop for int8 converts on its own
            loop = (result, result)
        if node.kind == "power":
            return self.power(self.operand(node.args[0], loop[0], values), i, values)
        args = [self.operand(j, dtype, values) for j, dtype in zip(node.args, loop, strict=True)]
        if node.kind == "where":
            return self.emit("where", *args)
        return self.operation(node.kind, loop[0], args)

    def operand(self, i: int, dtype: Dtype, values: Mapping[int, Ref]) -> Ref:
        self.see(dtype)
        if i in values:
            return self.convert(values[i], np.dtype(self.typed.types[i]), dtype)
        return ("constant", self.constants.setdefault((i, dtype), len(self.constants)))

    def operation(self, kind: str, dtype: Dtype, args: list[Ref]) -> Ref:
        """kind: a ufunc's name. dtype: of the operands."""
        if dtype.kind == "f":
            return self.emit(f"{_form(dtype)}_{kind}", *args)
        if kind in ("floor", "ceil", "trunc") or (kind == "absolute" and dtype.kind != "i"):
            return args[0]
        if kind in ("isnan", "isinf", "isfinite"):
            kind, args = "equal" if kind == "isfinite" else "not_equal", [args[0], args[0]]
        if dtype == _BOOL:
            return self.emit("int_" + _OF_BOOL.get(kind, kind), *args)
        result = self.emit("int_" + kind, *args)
        return self.wrap(result, dtype) if kind in _GROW else result

    def wrap(self, value: Ref, dtype: Dtype) -> Ref:
        """An integer as the type can hold it."""
        if dtype.itemsize == 8 or (dtype.itemsize == 4 and not self.wide):
            return value
        return self.emit(f"int_to_{dtype.name}", value)

    def power(self, base: Ref, i: int, values: Mapping[int, Ref]) -> Ref:
        """NumPy's shortcuts for squares and roots; integers by multiplications."""
        dtype, by = self.typed.loops[i]
        exponent = self.typed.expression.nodes[i].args[1]
        number = self.exponents.get(exponent)
        if dtype.kind == "f":
            form = _form(dtype)
            if number == 2:
                return self.emit(f"{form}_square", base)
            if number == 0.5:
                return self.emit(f"{form}_sqrt", base)
            return self.emit(f"{form}_power", base, self.operand(exponent, by, values))
        if number is None or not 1 <= number <= _MOST_POWER:
            raise _Unsupported
        result = base
        for bit in f"{int(number):b}"[1:]:
            result = self.wrap(self.emit("int_multiply", result, result), dtype)
            if bit == "1":
                result = self.wrap(self.emit("int_multiply", result, base), dtype)
        return result

    def convert(self, value: Ref, dtype: Dtype, to: Dtype) -> Ref:
        """Any conversion but of floats to integers, which C leaves to the processor."""
        self.see(to)
        form, wanted = _form(dtype), _form(to)
        if to == _BOOL and dtype != _BOOL:
            return self.emit(f"{form}_nonzero", value)
        if form == wanted:
            return value if to.kind == "f" or np.can_cast(dtype, to) else self.wrap(value, to)
        if wanted == "int":
            raise _Unsupported
        return self.emit(f"{form}_to_{wanted}", value)

    # --- order and registers

    def order(self, root: int) -> list[int]:
        """Instructions by Sethi and Ullman's rule: of two operands first the one that needs more registers."""
        need: list[int] = []
        for _, args in self.code:
            needs = sorted((need[n] for kind, n in args if kind == "value"), reverse=True)
            need.append(max([1, *(k + extra for extra, k in enumerate(needs))]))
        order: list[int] = []
        seen: set[int] = set()
        waiting = [(root, False)]
        while waiting:
            i, ready = waiting.pop()
            if ready:
                order.append(i)
            elif i not in seen:
                seen.add(i)
                waiting.append((i, True))
                operands = {n for kind, n in self.code[i][1] if kind == "value"}
                waiting += [(n, False) for n in sorted(operands, key=lambda n: (need[n], -n))]
        return order

    def allocate(self, order: list[int]) -> Iterator[bytes]:
        """The steps. A value that only the next step uses gets no register."""
        if len(order) > STEPS:
            raise _TooLarge
        last: dict[Ref, int] = {}
        kept: set[int] = set()
        for place, i in enumerate(order):
            for slot, ref in enumerate(self.code[i][1]):
                last[ref] = place
                if ref[0] == "value" and (slot == 2 or place == 0 or order[place - 1] != ref[1]):
                    kept.add(ref[1])
        registers: dict[Ref, int] = {("input", n): n for n in range(len(self.inputs))}
        free = set(range(len(self.inputs), REGISTERS))
        for place, i in enumerate(order):
            name, args = self.code[i]
            codes = [_NONE, _NONE, _NONE]
            for slot, ref in enumerate(args):
                if ref[0] == "constant":
                    codes[slot] = _CONSTANT + ref[1]
                elif slot < 2 and place > 0 and ref == ("value", order[place - 1]):
                    codes[slot] = _PREVIOUS
                else:
                    codes[slot] = registers[ref]
            for ref in set(args):
                if last[ref] == place and ref in registers:
                    free.add(registers.pop(ref))
            store = _NONE
            if i in kept:
                if not free:
                    raise _TooLarge
                store = registers["value", i] = min(free)
                free.remove(store)
            op = _core.evaluate_op(name)
            if op < 0:
                raise _Unsupported
            yield struct.pack("8B", op, *codes, store, 0, 0, 0)


def _form(dtype: Dtype) -> str:
    """How cells hold it."""
    if dtype.kind in "biu":
        return "int"
    return {"f4": "f32", "f8": "f64"}.get(dtype.str[1:], "none")


def cell(value: Any, dtype: Dtype) -> bytes:
    """A number as a constant. Raises OverflowError where NumPy would for a Python integer."""
    number = (
        dtype.type(value) if isinstance(value, (int, float)) else np.asarray(value).astype(dtype)
    )
    if dtype.kind in "biu":
        return (int(number) & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
    return np.asarray(number, dtype).tobytes().ljust(8, b"\0")
