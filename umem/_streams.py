"""Context managers over the two context variables that the C code reads: the current stream, and deferred waiting."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from umem import _core

if TYPE_CHECKING:
    from types import TracebackType

_T = TypeVar("_T")

# What each open `with` of this thread or task will undo, innermost last. Kept per context and not per
# object, so that one object can be entered again, and by several threads or tasks at once.
_open: ContextVar[tuple[Token[Any], ...]] = ContextVar("umem_open_contexts", default=())


class _Setting(Generic[_T]):
    """Sets a context variable for the length of a `with` block."""

    __slots__ = ("_value", "_variable")

    def __init__(self, variable: ContextVar[_T], value: _T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> _T:
        _open.set((*_open.get(), self._variable.set(self._value)))
        return self._value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = _open.get()
        if not opened:
            raise RuntimeError(
                "a block of umem.stream() or umem.deferred() ends in a thread or task where none was "
                "entered: enter and leave it in the same one"
            )
        _open.set(opened[:-1])
        self._variable.reset(opened[-1])


def stream(s: object, /) -> _Setting[_core.Stream]:
    """`with umem.stream(s):` puts umem's GPU work of this thread or task on the stream `s`.

    `s` is a `umem.Stream`, an integer handle (a `cudaStream_t`), or an object of another library:
    anything with `__cuda_stream__`, a `torch.cuda.Stream`, a CuPy or a Numba stream. The stream behind
    a bare handle must stay alive inside the block. Without a GPU there is nothing to order, and any
    stream is accepted. The value of the `with` statement is the `umem.Stream`.
    """
    return _Setting(_core.current_stream, s if isinstance(s, _core.Stream) else _core.Stream(s))


def deferred() -> _Setting[bool]:
    """`with umem.deferred():` lets kernels return early even where a host view of their memory lives.

    A kernel that writes memory which a NumPy array, a memoryview or a CPU tensor also shows
    completes before it returns, so that the view never shows old values (rule 3 of
    docs/coherence.md). Inside this block it does not: call `umem.synchronize()` before you read such
    a view. Reading through umem (`np.asarray(a)`, `a[0]`, `print(a)`) waits as ever.
    """
    return _Setting(_core.deferred_var, True)
