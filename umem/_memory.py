"""Statistics for people: the summary as a table, scopes that count, and recordings of allocations."""

from __future__ import annotations

import os
import struct
import warnings
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any

from umem import _core
from umem._residency import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

# --- memory_summary

_COLUMNS = ("current", "peak", "total allocated", "total freed")
_PARTS = ("current", "peak", "allocated", "freed")
_POOLS = (("all", ""), ("small_pool", "  below 64 KiB"), ("large_pool", "  64 KiB and more"))
_WIDTHS = (20, 14, 14, 17, 14)


def memory_summary(device: object = None) -> str:
    """`memory_stats` as a table.

    Parameters
    ----------
    device : optional
        A GPU. None: all together.

    Returns
    -------
    str
        Lines of text; sizes are in powers of 1024.
    """
    stats = _core.memory_stats(device)
    limit, split = stats["limit_bytes"], stats["max_split_size"]
    where = "all devices together" if device is None else f"device {device}"
    reserved = stats["reserved_bytes.all.current"]
    fragments = stats["inactive_split_bytes.all.current"]
    largest = _core.largest_free(device)
    lines = [
        f"umem memory of {where}, limit {'none' if limit is None else format_size(limit)}",
        _row("", _COLUMNS),
    ]
    for name, title, text in (
        ("allocated_bytes", "in arrays", format_size),
        ("allocation", "arrays", str),
        ("reserved_bytes", "reserved", format_size),
        ("segment", "slabs", str),
    ):
        for pool, label in _POOLS:
            lines.append(_row(label or title, _figures(stats, name, pool, text)))
    lines += [
        "",
        "of the reserved memory, now",
        _note("in blocks", stats["block_bytes.all.current"], "arrays, and freed ones kept at hand"),
        _note("  waiting", stats["waiting_bytes"], "of those: freed, but the GPU may use it"),
        _note("fragmentation", fragments, f"{_share(fragments, reserved)} free in slabs in use"),
        _note("idle", stats["idle_bytes"], "whole slabs kept for reuse"),
        _note("largest free", largest, "what fits without a new slab"),
        *_homes(stats),
        "",
        f"slabs from the driver or system: {stats['num_device_alloc']}, "
        f"given back: {stats['num_device_free']}; "
        f"largest size that shares a slab: {'no limit' if split < 0 else format_size(split)}",
        f"out of memory: {stats['num_ooms']}, retries: {stats['num_alloc_retries']}",
    ]
    return "\n".join(lines)


def _row(title: str, cells: tuple[str, ...]) -> str:
    padded = (cell.rjust(width) for cell, width in zip(cells, _WIDTHS[1:], strict=True))
    return (title.ljust(_WIDTHS[0]) + "".join(padded)).rstrip()


def _figures(
    stats: dict[str, Any], name: str, pool: str, text: Callable[[int], str]
) -> tuple[str, ...]:
    return tuple(text(stats[f"{name}.{pool}.{part}"]) for part in _PARTS)


def _note(title: str, nbytes: int, text: str) -> str:
    return f"{title.ljust(_WIDTHS[0])}{format_size(nbytes):>{_WIDTHS[1]}}  ({text})"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def _homes(stats: dict[str, Any]) -> Iterator[str]:
    """A line for each home in use, when arrays were made with one."""
    prefix, suffix = "reserved_bytes.home.", ".current"
    homes = sorted(key[len(prefix) : -len(suffix)] for key in stats if key.startswith(prefix))
    if homes in ([], ["None"]):
        return
    yield from ("", "by home")
    for home in homes:
        used, held = (
            stats[f"{name}.home.{home}.current"] for name in ("allocated_bytes", "reserved_bytes")
        )
        title = "  none" if home == "None" else f"  {home}"
        yield _note(title, used, f"in arrays, of {format_size(held)} reserved")


# --- memory_scope


class memory_scope:
    """Counts what umem allocates and frees inside a `with` block, in all threads of the process.

    Scopes may be nested and may overlap. The figures can be read inside the block and after it.

    Parameters
    ----------
    name : str, optional
        For the text form.
    device : optional
        The GPU to count for. None: all together.

    Attributes
    ----------
    name : str
    allocated, freed : int
        Bytes that arrays asked for, and bytes of arrays that died.
    current : int
        Their difference: by how much more (or, below 0, less) is in use than at the beginning.
    peak : int
        The most that was in use above what was at the beginning. Exact while one thread allocates;
        what others do at the very time of the peak may be missed, or counted too early.
    blocks_allocated, blocks_freed, blocks, blocks_peak : int
        The same four in numbers of arrays that own memory.

    Examples
    --------
    >>> with umem.memory_scope("load") as m:
    ...     a = umem.empty(1000, "u1")
    >>> m.allocated, m.current, m.peak
    (1000, 1000, 1000)
    """

    __slots__ = ("_device", "_handle", "_open", "name")

    name: str

    def __init__(self, name: str = "", device: object = None) -> None:
        self.name = name
        self._device = device
        self._handle: object = None
        self._open = False

    def __enter__(self) -> Self:
        if self._handle is not None:
            raise RuntimeError(f"memory_scope {self.name!r} was entered before: make a new one")
        self._handle = _core.scope_begin(self._device)
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle is None:
            raise RuntimeError(f"memory_scope {self.name!r} was not entered")
        self._open = False
        _core.scope_end(self._handle)

    def _read(self) -> tuple[int, int, int, int, int, int]:
        return (0,) * 6 if self._handle is None else _core.scope_read(self._handle)

    @property
    def allocated(self) -> int:
        return self._read()[0]

    @property
    def freed(self) -> int:
        return self._read()[1]

    @property
    def current(self) -> int:
        allocated, freed, *_ = self._read()
        return allocated - freed

    @property
    def peak(self) -> int:
        return self._read()[2]

    @property
    def blocks_allocated(self) -> int:
        return self._read()[3]

    @property
    def blocks_freed(self) -> int:
        return self._read()[4]

    @property
    def blocks(self) -> int:
        *_, allocated, freed, _peak = self._read()
        return allocated - freed

    @property
    def blocks_peak(self) -> int:
        return self._read()[5]

    def __repr__(self) -> str:
        allocated, freed, peak, made, died, _ = self._read()
        change = allocated - freed
        sign = "-" if change < 0 else "+"
        state = "not entered" if self._handle is None else "open" if self._open else "done"
        return (
            f"<umem.memory_scope {self.name!r}, {state}: "
            f"allocated {format_size(allocated)} in {made}, freed {format_size(freed)} in {died}, "
            f"now {sign}{format_size(abs(change))}, peak +{format_size(peak)}>"
        )


# --- record_allocations

#: first line of a recording
RECORDING_HEADER = "umem-allocations 1"

_EVENT = struct.Struct("=QQhhi")  # um_log_event
_HOME_KINDS = ("-", "cpu", "cuda", "numa")  # numbered as um_location_kind


class record_allocations:
    """Records every allocation and free of umem inside a `with` block, in their order.

    ``python -m umem bench replay FILE`` does the same again and times it. One recording at a time.
    Small arrays take a longer way while it runs, and the text is written when the block ends, also
    when it ends with an exception.

    Parameters
    ----------
    file : str, os.PathLike or text file
        Where to write; a file of that path is replaced.

    Raises
    ------
    RuntimeError
        Allocations are being recorded already, by this or another object.

    Warns
    -----
    RuntimeWarning
        There was no memory to record what came later.

    Notes
    -----
    The format is text, a line for each event. The first line is ``umem-allocations 1``, lines that
    begin with ``#`` are comments, and ids are numbers that no two allocations share::

        a <id> <bytes> <device> <home>   allocated on that device; home is -, cpu, cuda:N or numa:N
        f <id>                           freed

    Arrays of no bytes, memory of other libraries, and frees of what was allocated before the
    recording began are left out.
    """

    __slots__ = ("_file", "_opened", "_target")

    def __init__(self, file: str | os.PathLike[str] | IO[str]) -> None:
        self._target = file
        self._file: IO[str] | None = None  # while it records
        self._opened = False  # the file is this object's own

    def __enter__(self) -> Self:
        _core.log_begin()
        try:
            self._opened = isinstance(self._target, str | os.PathLike)
            if isinstance(self._target, str | os.PathLike):
                self._file = open(self._target, "w", encoding="ascii")
            elif callable(getattr(self._target, "write", None)):
                self._file = self._target
            else:
                raise TypeError(
                    "file must be a path or a text file with write(), "
                    f"not {type(self._target).__name__!r}"
                )
            self._file.write(f"{RECORDING_HEADER}\n")  # one that cannot be written fails now
        except BaseException:
            self._file = None
            _core.log_end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            raise RuntimeError("record_allocations was not entered, or has ended")
        events, complete = _core.log_end()
        with file if self._opened else nullcontext():
            _write(events, complete, file)
        if not complete:
            warnings.warn(
                "there was no memory to record all allocations: the recording ends early",
                RuntimeWarning,
                stacklevel=2,
            )


def _write(events: bytes, complete: bool, file: IO[str]) -> None:
    lines: list[str] = []
    ids: dict[int, int] = {}  # of live blocks, by address
    count = 0
    for address, size, device, kind, number in _EVENT.iter_unpack(events):
        if size:
            ids[address] = count
            home = _HOME_KINDS[kind] if kind < 2 else f"{_HOME_KINDS[kind]}:{number}"
            lines.append(f"a {count} {size} {device} {home}\n")
            count += 1
        elif address in ids:
            lines.append(f"f {ids.pop(address)}\n")
        if len(lines) >= 4096:
            file.write("".join(lines))
            lines.clear()
    if not complete:
        lines.append("# ends early: there was no memory to record more\n")
    file.write("".join(lines))
