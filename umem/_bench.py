"""`python -m umem bench replay FILE`: a recording of allocations, done again as fast as possible."""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from umem._memory import RECORDING_HEADER
from umem._residency import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import IO

    Operations = list[tuple[Callable[[int], object] | None, int, int]]

PEERS = ("torch", "cupy", "rmm", "numpy")

_LONGEST = 4096  # characters of a line: what has none is no recording, however large it is

_HOME = re.compile(r"-|cpu|(cuda|numa):\d{1,9}")


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation, or (size 0) the free of what the place holds."""

    place: int
    size: int = 0
    device: int = 0
    home: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a replay took. Figures that a library does not give are None."""

    name: str
    nanoseconds: float
    reserved_peak: int | None


class BadRecording(ValueError):
    """The file is no recording; the message says where."""


# --- reading


def read_recording(lines: Iterable[str]) -> list[Event]:
    """The events of a recording. BadRecording names the first line that makes no sense."""
    numbered = enumerate(lines, 1)
    _, first = next(numbered, (1, ""))
    if first.rstrip("\r\n") != RECORDING_HEADER:
        raise BadRecording(f"line 1: must be {RECORDING_HEADER!r}, is {_shown(first)}")
    events: list[Event] = []
    places: dict[int, int] = {}  # of live ids
    seen: set[int] = set()
    free: list[int] = []
    for number, line in numbered:
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            match fields:
                case ["a", name, size, device, home]:
                    key = _number(name)
                    if key in seen:
                        raise BadRecording(f"id {key} was allocated before")
                    if not _HOME.fullmatch(home):
                        raise BadRecording(f"{home!r} is no home: -, cpu, cuda:N or numa:N")
                    if not 0 < _number(size) <= sys.maxsize:
                        raise BadRecording(
                            "an allocation has at least one byte, and fits an address space"
                        )
                    place = free.pop() if free else len(places)
                    seen.add(key)
                    places[key] = place
                    where = None if home == "-" else home
                    events.append(Event(place, _number(size), _number(device), where))
                case ["f", name]:
                    key = _number(name)
                    if key not in places:
                        raise BadRecording(f"id {key} is not allocated here")
                    free.append(places.pop(key))
                    events.append(Event(free[-1]))
                case _:
                    raise BadRecording(
                        f"must be 'a <id> <bytes> <device> <home>' or 'f <id>', is {_shown(line)}"
                    )
        except BadRecording as error:
            raise BadRecording(f"line {number}: {error}") from None
    return events


def _lines(file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(_LONGEST):
        number += 1
        if len(line) == _LONGEST:
            raise BadRecording(f"line {number}: is longer than {_LONGEST - 1} characters")
        yield line


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadRecording(f"{_shown(text)} is no number")
    return int(text)


def _shown(text: str) -> str:
    text = text.rstrip("\r\n")
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def peak_of(events: Iterable[Event]) -> int:
    """The most bytes that are in use at once."""
    live: dict[int, int] = {}
    now = peak = 0
    for event in events:
        now += event.size - live.pop(event.place, 0)
        if event.size:
            live[event.place] = event.size
        peak = max(peak, now)
    return peak


# --- allocators: what makes memory, what begins a replay, and the most that was reserved since


def _umem(events: Iterable[Event]) -> tuple[Operations, Callable[[], None], Callable[[], int]]:
    import umem

    gpus = len(umem.devices())
    nodes = umem.info()["numa_nodes"]
    makers: dict[tuple[int, str | None], Callable[[int], object]] = {}
    operations: Operations = []
    for event in events:
        if not event.size:
            operations.append((None, event.place, 0))
            continue
        device = event.device if event.device < gpus else 0
        home = event.home
        if home is not None and home.startswith("cuda:") and int(home[5:]) >= gpus:
            home = "cuda:0"
        elif home is not None and home.startswith("numa:") and int(home[5:]) not in nodes:
            home = "cpu"
        maker = makers.get((device, home))
        if maker is None:
            maker = partial(umem.empty, dtype=np.dtype("u1"))
            if device:
                maker = partial(maker, device=device)
            if home is not None:
                maker = partial(maker, home=home)
            makers[device, home] = maker
        operations.append((maker, event.place, event.size))
    held = 0

    def begin() -> None:
        nonlocal held
        umem.trim()
        umem.reset_peak()
        held = umem.memory_stats()["reserved_bytes.all.current"]

    return operations, begin, lambda: umem.memory_stats()["reserved_bytes.all.peak"] - held


def _torch() -> tuple[Callable[[int], object], Callable[[], None], Callable[[], int | None]]:
    import torch

    gpu = torch.cuda.is_available()
    make = partial(torch.empty, dtype=torch.uint8, device="cuda" if gpu else "cpu")

    def begin() -> None:
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    return make, begin, lambda: torch.cuda.max_memory_reserved() if gpu else None


def _cupy() -> tuple[Callable[[int], object], Callable[[], None], Callable[[], int | None]]:
    import cupy

    pool = cupy.get_default_memory_pool()
    # The pool gives nothing back by itself: what it holds at the end is its peak.
    return cupy.cuda.alloc, pool.free_all_blocks, pool.total_bytes


def _rmm() -> tuple[Callable[[int], object], Callable[[], None], Callable[[], int | None]]:
    import rmm

    rmm.reinitialize(pool_allocator=True)
    return lambda size: rmm.DeviceBuffer(size=size), lambda: None, lambda: None


def _numpy() -> tuple[Callable[[int], object], Callable[[], None], Callable[[], int | None]]:
    return partial(np.empty, dtype=np.dtype("u1")), lambda: None, lambda: None


_MAKERS = {"torch": _torch, "cupy": _cupy, "rmm": _rmm, "numpy": _numpy}


# --- replaying


def _run(operations: Operations, places: int) -> int:
    """Nanoseconds of all operations; what is left over at the end is freed untimed."""
    live: list[object] = [None] * places
    begin = perf_counter_ns()
    for make, place, size in operations:
        live[place] = make(size) if make is not None else None
    return perf_counter_ns() - begin


def replay(events: list[Event], repeat: int, peer: str | None = None) -> Result:
    """Replays the events on umem or on another library's allocator: the median of `repeat` times."""
    begin: Callable[[], None]
    reserved: Callable[[], int | None]
    if peer is None:
        operations, begin, reserved = _umem(events)
    else:
        make, begin, reserved = _MAKERS[peer]()
        operations = [(make if e.size else None, e.place, e.size) for e in events]
    places = max((event.place for event in events), default=-1) + 1
    times = []
    peaks = []
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeat):
            begin()
            times.append(_run(operations, places))
            peaks.append(reserved())
    finally:
        if collects:
            gc.enable()
    peak = max((found for found in peaks if found is not None), default=None)
    return Result(peer or "umem", statistics.median(times), peak)


def report(events: list[Event], results: Iterable[Result]) -> Iterator[str]:
    """Lines of text: the recording, and a row for each library.

    Fragmentation is the part of the most that was reserved which goes beyond the most that was in use.
    """
    allocations = sum(1 for event in events if event.size)
    peak = peak_of(events)
    yield (
        f"{len(events)} events: {allocations} allocations, "
        f"{len(events) - allocations} frees; at most {format_size(peak)} in use"
    )
    yield f"{'':<8}{'total':>12}{'per event':>12}{'reserved':>12}{'fragmentation':>16}"
    for result in results:
        held = result.reserved_peak
        unused = "" if not held else f"{100 * max(held - peak, 0) / held:.1f} %"
        yield (
            f"{result.name:<8}{result.nanoseconds / 1e6:>9.3f} ms"
            f"{result.nanoseconds / max(len(events), 1):>9.0f} ns"
            f"{'' if held is None else format_size(held):>12}{unused:>16}"
        ).rstrip()


def main(arguments: list[str]) -> int:
    """`python -m umem bench …`: the exit status."""
    parser = argparse.ArgumentParser(prog="python -m umem bench")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="do what was recorded again and time it")
    command.add_argument("file", metavar="FILE", help="written by umem.record_allocations")
    command.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=PEERS,
        help="replay on the allocator of this library too (may be given several times)",
    )
    command.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="take the median of N replays (5)"
    )
    options = parser.parse_args(arguments)
    if options.repeat < 1:
        command.error("--repeat must be at least 1")
    try:
        with open(options.file, encoding="ascii", errors="replace") as file:
            events = read_recording(_lines(file))
    except (OSError, BadRecording) as error:
        text = error.strerror if isinstance(error, OSError) else error
        print(f"{options.file}: {text}", file=sys.stderr)
        return 1
    results = []
    for peer in (None, *options.peer):
        try:
            results.append(replay(events, options.repeat, peer))
        except (ImportError, RuntimeError, ValueError, MemoryError) as error:
            name = peer or "umem"
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    for line in report(events, results):
        print(line)
    return 0 if len(results) == 1 + len(options.peer) else 1
