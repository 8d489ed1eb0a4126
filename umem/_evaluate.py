"""`umem.evaluate`: an expression of arrays in one pass over memory.

On the CUDA backend a kernel runs it as a program of a register machine. What that has no type or operation for, and
everything on the host backend, NumPy computes operation by operation, over pieces that stay in the cache.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from umem import _core, _layout, _ufunc
from umem._core import ndarray
from umem._expression import compute, fail, parse, split
from umem._program import cell, passes, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from umem._expression import Expression, Split
    from umem._program import Dtype, Pass, Type, Typed

#: elements that NumPy computes at a time: a few buffers of them fit the second-level cache
_PIECE = 16_384
_NUMBERS = (bool, int, float, complex, np.generic)


def evaluate(
    ex: str,
    local_dict: Mapping[str, Any] | None = None,
    global_dict: Mapping[str, Any] | None = None,
    out: Any = None,
    order: str = "K",
    casting: Any = "safe",
) -> Any:
    """Evaluate an expression of arrays in one pass over memory.

    Parameters
    ----------
    ex : str
        The expression, such as ``"2*a + b*sin(c)"``. It has names, numbers, the operators
        ``+ - * / // % ** & | ^ ~ << >>``, comparisons (one at a time), parentheses, ``where(cond, a, b)``
        and the functions ``sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh
        arctanh exp exp2 expm1 log log2 log10 log1p sqrt abs floor ceil trunc rint minimum maximum fmod
        hypot isnan isinf isfinite``.
    local_dict, global_dict : mapping, optional
        Where names are looked up, the first before the second. Default: the caller's local and global
        variables.
    out : array, optional
        Array that the operands broadcast to; receives the result and is returned. It may be one of
        the operands, or overlap them.
    order : {'K', 'C', 'F', 'A'}
        Memory order of a new result.
    casting : str
        Which casts of the result to the dtype of `out` are allowed: ``"safe"``, ``"same_kind"``,
        ``"unsafe"``, ….

    Returns
    -------
    umem.ndarray
        `out`, or a new array. A NumPy scalar when no operand has an axis.

    Raises
    ------
    SyntaxError, NameError, TypeError
        The expression is none, or has a name without a value or an operation without a loop for its
        types. The message points at the character.

    Notes
    -----
    Types are NumPy's, operation by operation: ``"a + 1"`` is float32 for a float32 `a`, and numbers in
    the expression are Python's. numexpr differs: it computes float32 with a float constant in float64,
    knows neither int8 nor int16, and has ``sum`` and ``prod``, which are not here. Results are those of NumPy's
    operations one by one; on a GPU, functions such as ``sin`` are within 4 units in the last place, and
    floating-point errors raise no warnings.

    Expressions and their programs are kept, so that a repeated call costs little. Up to 8 arrays and
    what 12 registers can hold take one pass; larger expressions take several.

    float16, uint64, complex numbers and integer powers that are no constants have no kernel: NumPy
    computes them on the host, in pieces that fit its cache.

    Examples
    --------
    >>> a, b = umem.arange(4.0), umem.ones(4)
    >>> umem.evaluate("2*a + b")
    umem.array([1., 3., 5., 7.])
    """
    if not isinstance(ex, str):
        raise TypeError(f"the expression must be a str, not {type(ex).__name__!r}")
    expression = parse(ex)
    values = _look_up(expression, local_dict, global_dict)
    order = _layout.check_order(order)
    if out is not None and not isinstance(out, (ndarray, np.ndarray)):
        raise TypeError(f"out must be an array, not {type(out).__name__!r}")
    arrays = {i: v for i, v in values.items() if not isinstance(v, _NUMBERS)}
    parts = split(expression, frozenset(arrays))
    for i in parts.scalars:
        node = expression.nodes[i]
        operands = [_number(expression, j, values) for j in node.args]
        values[i] = compute(node.kind, operands, expression.text, node.at)
    if not arrays:
        return _return_number(_number(expression, len(expression.nodes) - 1, values), out, casting)
    return _Call(expression, parts, arrays, values, out, casting).run(order)


# --- operands -----------------------------------------------------------------------------------------


def _look_up(
    expression: Expression,
    local_dict: Mapping[str, Any] | None,
    global_dict: Mapping[str, Any] | None,
) -> dict[int, Any]:
    """Values of names, by their nodes."""
    frame = sys._getframe(2)
    own = local_dict is None
    try:
        local: Mapping[str, Any] = frame.f_locals if local_dict is None else local_dict
        outer: Mapping[str, Any] = frame.f_globals if global_dict is None else global_dict
        # Before Python 3.13 the frame of a function keeps the dict that was made for this, and in it arrays
        # that the function drops later. Nobody misses it but who holds it too.
        made_here = own and type(local) is dict and frame.f_code.co_flags & 1 != 0
    finally:
        del frame
    found = {}
    try:
        for i in expression.names:
            node = expression.nodes[i]
            name = node.value
            if name in local:
                value = local[name]
            elif name in outer:
                value = outer[name]
            else:
                fail(NameError, f"name {name!r} is not defined", expression.text, node.at)
            found[i] = _operand(value, expression, i)
    finally:
        if made_here and sys.getrefcount(local) <= 3:
            local.clear()  # type: ignore[attr-defined]
    return found


def _operand(value: Any, expression: Expression, i: int) -> Any:
    """An array or a number."""
    x: Any = value
    if type(x) is not ndarray and not isinstance(x, _NUMBERS):
        x = _ufunc._operand(x)
        if isinstance(value, np.ma.MaskedArray):
            x = None  # computing without the mask would be wrong
        elif not isinstance(x, ndarray):
            x = np.asarray(x)
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    typed = isinstance(x, (ndarray, np.ndarray, np.generic))
    if (x.dtype.kind not in "biufc") if typed else not isinstance(x, _NUMBERS):
        node = expression.nodes[i]
        fail(
            TypeError,
            f"{node.value!r} is a {type(value).__name__}, neither an array of numbers nor a number",
            expression.text,
            node.at,
        )
    return x


def _number(expression: Expression, i: int, values: Mapping[int, Any]) -> Any:
    node = expression.nodes[i]
    return node.value if node.kind == "number" else values[i]


def _return_number(value: Any, out: Any, casting: Any) -> Any:
    if out is None:
        return np.asarray(value)[()]
    _check_cast(np.asarray(value).dtype, out, casting)
    out[...] = value
    return out


def _check_cast(dtype: Dtype, out: Any, casting: Any) -> None:
    if not (dtype == out.dtype and casting == "safe") and not np.can_cast(
        dtype, out.dtype, casting
    ):
        raise TypeError(
            f"the result is {dtype}, and casting={casting!r} does not allow it to be cast to "
            f"{out.dtype}, the dtype of out"
        )
    if not out.flags.writeable:
        raise ValueError("output array is read-only")


# --- compiled expressions -----------------------------------------------------------------------------


class _Compiled:
    """What is kept of an expression with operands of certain types."""

    def __init__(self, typed: Typed, exponents: dict[int, Any]) -> None:
        self.typed = typed
        self._exponents = exponents
        self._passes: dict[Dtype | None, tuple[Pass, ...] | None] = {}

    def passes(self, dtype: Dtype | None) -> tuple[Pass, ...] | None:
        if dtype not in self._passes:
            self._passes[dtype] = passes(self.typed, self._exponents, dtype)
        return self._passes[dtype]


@lru_cache(maxsize=256)
def _compile(
    expression: Expression,
    parts: Split,
    types: tuple[tuple[int, Type], ...],
    exponents: tuple[tuple[int, Any], ...],
) -> _Compiled:
    return _Compiled(resolve(expression, parts, dict(types)), dict(exponents))


def _exponent(value: Any) -> Any:
    """What of an exponent's value decides the program: all that it is multiplied out for, or a shortcut."""
    if isinstance(value, (int, np.integer)) and 1 <= value <= 64:
        return int(value)
    return float(value) if isinstance(value, float) and value in (0.5, 2.0) else None


class _Call:
    def __init__(
        self,
        expression: Expression,
        parts: Split,
        arrays: dict[int, Any],
        values: dict[int, Any],
        out: Any,
        casting: Any,
    ) -> None:
        self.arrays = arrays
        self.roots = {i: _number(expression, i, values) for i in parts.roots}
        types = [(i, x.dtype) for i, x in arrays.items()]
        types += [(i, _ufunc._weak_type(x)) for i, x in self.roots.items()]
        exponents = tuple((i, _exponent(self.roots[i])) for i in parts.exponents)
        self.compiled = _compile(expression, parts, tuple(types), exponents)
        self.typed = self.compiled.typed
        self.out = out
        self.casting = casting
        if out is not None:
            _check_cast(self.typed.result, out, casting)
        self.shape = self.common_shape()

    def common_shape(self) -> tuple[int, ...]:
        shapes: list[tuple[int, ...]] = [x.shape for x in self.arrays.values()]
        if self.out is not None:
            shapes.append(self.out.shape)
        if shapes.count(shapes[0]) == len(shapes):
            return shapes[0]
        shape = np.broadcast_shapes(*shapes)
        if self.out is not None and shape != self.out.shape:
            inputs = np.broadcast_shapes(*shapes[:-1])
            raise ValueError(f"operands have shape {inputs} together, and out has {self.out.shape}")
        return shape

    def new(self, dtype: Dtype, order: str) -> ndarray:
        inputs = tuple(self.arrays.values())
        like = next((x for x in inputs if x.ndim == len(self.shape)), None)
        device = (
            _ufunc._device_of(inputs) if self.out is None else getattr(self.out, "device", None)
        )
        return _layout.empty(self.shape, dtype, order, like, device=device)

    def run(self, order: str) -> Any:
        if self.shape != () and _core.has_kernels() and self.run_kernels(order):
            return self.out
        out = self.out
        if out is None:
            out = (
                self.new(self.typed.result, order)
                if self.shape
                else np.empty((), self.typed.result)
            )
        self.run_numpy(_ufunc._to_host_writable(out))
        return out if self.out is not None or self.shape else out[()]

    # --- the GPU computes

    def run_kernels(self, order: str) -> bool:
        """Whether the kernels did it."""
        if self.out is not None and type(self.out) is not ndarray:
            return False
        if not all(map(_is_plain, self.arrays.values())):
            return False
        out: Any = self.out
        direct = out is not None and _is_plain(out)
        if direct and not out.flags.c_contiguous:
            direct = not _ufunc._repeats(out)
        programs = self.compiled.passes(out.dtype if direct else None)
        if programs is None and direct:
            direct = False
            programs = self.compiled.passes(None)
        if programs is None:
            return False
        try:
            constants = [b"".join(cell(self.roots[i], t) for i, t in p.constants) for p in programs]
        except OverflowError:
            return False  # NumPy says what is wrong, or knows better: comparisons take any integer
        device = _ufunc._device_of(tuple(self.arrays.values())) if out is None else out.device
        sources = {i: _on_device(x, device) for i, x in self.arrays.items()}
        if direct and any(_ufunc._overlap(x, out) for x in sources.values()):
            direct = False
        for program, numbers in zip(programs, constants, strict=True):
            last = program is programs[-1]
            target = out if last and direct else self.new(program.dtype, order if last else "K")
            inputs = tuple(sources[i] for i in program.inputs)
            _core.evaluate(program.steps, numbers, program.wide, inputs, target)
            sources[program.node] = target
        if out is None:
            self.out = target
        elif not direct:
            out[...] = target
        return True

    # --- NumPy computes

    def run_numpy(self, out: np.ndarray[Any, Any]) -> None:
        expression, typed = self.typed.expression, self.typed
        names = list(self.arrays)
        operands: list[Any] = [_ufunc._to_host(self.arrays[i]) for i in names]
        op_flags: Any = [*([["readonly"]] * len(names)), ["writeonly", "no_broadcast"]]
        pieces = np.nditer(
            [*operands, out],
            flags=(
                "external_loop",
                "buffered",
                "zerosize_ok",
                "copy_if_overlap",
                "delay_bufalloc",
                "growinner",
            ),
            op_flags=op_flags,
            op_dtypes=[*(x.dtype for x in operands), typed.result],
            casting=self.casting,
            buffersize=_PIECE,
        )
        last = len(expression.nodes) - 1
        with pieces:
            pieces.reset()
            if pieces.itersize == 0:
                return
            for views in pieces:
                *given, target = views
                for first in range(0, len(target), _PIECE):
                    part = slice(first, first + _PIECE)
                    values = dict(zip(names, (x[part] for x in given), strict=True)) | self.roots
                    for i in typed.split.operations:
                        node = expression.nodes[i]
                        function = getattr(np, node.kind)
                        args = [values[j] for j in node.args]
                        if i == last and node.kind != "where":
                            values[i] = function(*args, out=target[part])
                        else:
                            values[i] = function(*args)
                    if last in self.arrays or expression.nodes[last].kind == "where":
                        target[part] = values[last]


def _is_plain(array: Any) -> bool:
    """Whether the machine can take the array as far as this shows: aligned, of this machine's byte order."""
    return bool(array.flags.aligned) and array.dtype.isnative


def _on_device(x: Any, device: str | None) -> ndarray:
    if isinstance(x, ndarray):
        return x
    shared = _core.alias(x)
    return shared if shared is not None else _layout.copy_of(x, device=device)
