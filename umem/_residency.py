"""What residency() found: where the pages of an array are."""

from __future__ import annotations

from typing import Any

import numpy as np

from umem import _core

_STATES = ("untouched", "host", "device", "unknown")  # numbered as um_page_state
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_size(nbytes: int) -> str:
    """Bytes for people: 512 B, 4.0 MiB."""
    size, unit = float(nbytes), _UNITS[0]
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"


class Residency:
    """Where the pages of an array were when it was asked.

    Bytes of the memory that the array spans (for a view with gaps, gaps included), by where they are:

    host       in host memory
    device     on a GPU
    untouched  nowhere yet: nothing has been stored there
    unknown    not in the host's page table; another library may or may not have put it on a GPU
    """

    UNTOUCHED, HOST, DEVICE, UNKNOWN = range(4)

    __slots__ = ("_bytes", "nbytes", "page_size", "pages")

    nbytes: int
    """Bytes that the array spans; host + device + untouched + unknown."""
    page_size: int
    """Bytes of a host page."""
    pages: np.ndarray[Any, np.dtype[np.uint8]]
    """One entry a page that the array touches: Residency.UNTOUCHED, HOST, DEVICE or UNKNOWN (0 to 3)."""

    def __init__(self, page_size: int, head: int, states: bytes, nbytes: int) -> None:
        """head: bytes of the first page that lie before the array; nbytes: bytes that the array spans."""
        self.nbytes = nbytes
        self.page_size = page_size
        self.pages = np.frombuffer(states, np.uint8)
        found = (np.bincount(self.pages, minlength=4) * page_size).tolist()
        if states:
            found[states[0]] -= head
            found[states[-1]] -= len(states) * page_size - head - nbytes
        self._bytes: tuple[int, ...] = tuple(found)

    @property
    def untouched(self) -> int:
        """Bytes in pages that nothing was ever stored in."""
        return self._bytes[0]

    @property
    def host(self) -> int:
        """Bytes in host memory."""
        return self._bytes[1]

    @property
    def device(self) -> int:
        """Bytes on a GPU."""
        return self._bytes[2]

    @property
    def unknown(self) -> int:
        """Bytes of which umem cannot tell."""
        return self._bytes[3]

    def fraction(self, state: str) -> float:
        """The share of "host", "device", "untouched" or "unknown", from 0 to 1 (0 for an array with no elements)."""
        if state not in _STATES:
            raise ValueError(f"state must be one of {', '.join(_STATES)} (got {state!r})")
        return self._bytes[_STATES.index(state)] / self.nbytes if self.nbytes else 0.0

    def percent(self, state: str) -> float:
        """fraction() from 0 to 100."""
        return 100 * self.fraction(state)

    def __str__(self) -> str:
        parts = [
            f"{_percent_text(self.percent(state))} {state}"
            for state in ("host", "device", "untouched", "unknown")
            if self.fraction(state)
        ]
        return f"{format_size(self.nbytes)}: {', '.join(parts) or 'empty'}"

    def __repr__(self) -> str:
        return f"<Residency {self}>"


def _percent_text(percent: float) -> str:
    """A share that is neither none nor all never reads 0% or 100%."""
    if percent < 1:
        return "<1%"
    return f"{percent:.0f}%" if percent <= 99 or percent == 100 else ">99%"


def span(array: _core.ndarray) -> int:
    """Bytes from the first to the last that an array touches; 0 when it has no elements."""
    if array.size == 0:
        return 0
    steps = zip(array.shape, array.strides, strict=True)
    return array.itemsize + sum((length - 1) * abs(stride) for length, stride in steps)


def residency(self: _core.ndarray) -> Residency:
    """Where the array's pages are now, from the host's page table; moves none and waits for nothing."""
    return Residency(*_core.residency(self), span(self))
