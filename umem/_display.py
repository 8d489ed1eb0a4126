"""Text of arrays: NumPy's own, made from only the elements that it shows.

NumPy summarises a large array by its corners. It asks an array for `shape`, `size` and single
elements; an ndarray that holds just the corners but answers with the shape of the whole array is
therefore printed as if all elements were there, by whichever NumPy version is running and with
whatever print options are set. Elements in the leading corners have small indices and NumPy counts
those in trailing corners from the end, so both address the corners as they would the whole array.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from umem import _core

if TYPE_CHECKING:
    from collections.abc import Callable


class _Shown(np.ndarray[Any, Any]):
    """The elements of an array that NumPy prints."""


class _Corners(_Shown):
    """Corners of an array that claim to be all of it."""

    whole: tuple[int, ...]
    elements: int

    @property  # type: ignore[misc]
    def shape(self) -> tuple[int, ...]:
        return self.whole

    @property
    def size(self) -> int:
        return self.elements


# repr() begins with the name of the class.
_Shown.__name__ = _Corners.__name__ = "umem.array"


def shown(
    array: _core.ndarray, threshold: int | None = None, edgeitems: int | None = None
) -> np.ndarray[Any, Any]:
    """An ndarray that NumPy prints as it would print all of `array`, holding only what it needs.

    threshold and edgeitems: as np.array2string gets them; None means NumPy's print options.
    """
    if threshold is None or edgeitems is None:
        options = _print_options()
        threshold = options["threshold"] if threshold is None else threshold
        edgeitems = options["edgeitems"] if edgeitems is None else edgeitems
    # With no edge items NumPy formats by looking at all elements, and then shows the last.
    if array.size <= threshold or edgeitems < 1:
        return array.read().view(_Shown)
    cut = [length > 2 * edgeitems for length in array.shape]
    if not any(cut):
        return array.read().view(_Shown)
    ends = (slice(None, edgeitems), slice(-edgeitems, None))
    held = [2 * edgeitems if c else n for n, c in zip(array.shape, cut, strict=True)]
    corners = np.empty(held, array.dtype).view(_Corners)
    keys = list(product(*(ends if c else (slice(None),) for c in cut)))
    for key, corner in zip(keys, _core.read_all([array[key] for key in keys]), strict=True):
        corners[key] = corner
    corners.whole, corners.elements = array.shape, array.size
    return corners


def _print_options() -> dict[str, Any]:
    try:
        return dict(np.get_printoptions())
    except KeyError:  # NumPy 2.2 with legacy="2.1"; edgeitems=0 has all elements read
        return {"threshold": 0, "edgeitems": 0}


def array_repr(self: _core.ndarray) -> str:
    """NumPy's repr for the same values, beginning with "umem.array("; reads only what it shows."""
    options = _print_options()
    override: Callable[[Any], str] | None = options.get("override_repr")
    if override is not None:
        return override(self)
    return np.array_repr(shown(self, options["threshold"], options["edgeitems"]))


def array_str(self: _core.ndarray) -> str:
    """NumPy's text for the same values; reads only what it shows."""
    return np.array_str(shown(self))


def array_format(self: _core.ndarray, spec: str, /) -> str:
    """As for an ndarray: a 0-d array formats like its element."""
    if self.ndim == 0:
        return format(self[()], spec)
    return object.__format__(self, spec)


def repr_html(self: _core.ndarray) -> str:
    """What notebooks show: where the array is, and its values."""
    from html import escape  # not at import: it builds a large table

    facts = [
        ("shape", str(self.shape)),
        ("dtype", str(self.dtype)),
        ("device", self.device),
        ("home", str(self.home)),
        ("memory", str(self.residency())),
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in facts)
    body = "".join(f"<td>{escape(value)}</td>" for _, value in facts)
    return (
        f"<div><table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"
        f"<pre>{escape(array_str(self))}</pre></div>"
    )
