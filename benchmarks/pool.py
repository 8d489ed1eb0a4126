"""Allocating and freeing: one array, many, in threads, from cold, and as a real program does."""

from __future__ import annotations

import gzip
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peers import Allocate, Peers, allocators, optional
from report import MIB, Candidates, Report, Statement, measure, median_of, scaled

import umem

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

HOLES = 65536
LIVE = 1_000_000
COLD = 900  # arrays of 4 MiB: 1,000 would be more than the 4 GiB that a process here may have


def run_child(arguments: list[str | Path], **variables: str) -> str:
    """What a Python program prints in a process of its own. When it fails, RuntimeError with its last words."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.setdefault("UMEM_ALLOC_CONF", "limit:4GiB")
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout


# --- one small array


UMEM_SMALL = Statement("empty(1024, float32)", empty=umem.empty, float32=np.float32)


def small_candidates(peers: Peers) -> Candidates:
    """Each library in the words of its users."""
    found: Candidates = {
        "umem": UMEM_SMALL,
        "np.empty": Statement("empty(1024, float32)", empty=np.empty, float32=np.float32),
    }
    if "torch" in peers.found:
        import torch

        found["torch"] = Statement("empty(1024, device='cuda')", empty=torch.empty)
    if "cupy" in peers.found:
        import cupy

        found["cupy"] = Statement(
            "empty(1024, dtype=float32)", empty=cupy.empty, float32=cupy.float32
        )
    for name in ("cuda.core", "cuda.core, managed", "rmm", "rmm, managed"):
        if name in peers.found:
            found[name] = Statement("allocate(4096)", allocate=peers.found[name])
    return found


def small(report: Report, peers: Peers) -> None:
    report.add(
        "allocate and free, 4 KiB",
        measure(small_candidates(peers)),
        {
            "np.empty": ("time", 0.45),
            **dict.fromkeys(("torch", "cupy", "cuda.core", "cuda.core, managed"), ("time", 0.05)),
        },
        missing=peers.missing,
    )


# --- one array among many


def random_sizes(count: int) -> list[int]:
    """256 bytes to 64 KiB, each power of two as often as any other."""
    source = random.Random(1)
    return [(256 << source.randrange(8)) + source.randrange(256) for _ in range(count)]


def among(build: Callable[[], object], turns: int) -> dict[str, float]:
    """An array of 4 KiB while what `build` gives is alive, and while it is not."""

    def once() -> float:
        return measure({"umem": UMEM_SMALL}, turns=5)["umem"]

    found = []
    for _ in range(turns):
        before = once()
        alive = build()
        among_them = once()
        del alive
        found.append({"umem": among_them, "with nothing else": (before + once()) / 2})
    return median_of(found)


def fragmented() -> list[object]:
    arrays = [umem.empty(size, np.uint8) for size in random_sizes(2 * scaled(HOLES))]
    return arrays[::2]


def crowded() -> list[object]:
    return [umem.empty(256, np.float32) for _ in range(scaled(LIVE))]


def many(report: Report) -> None:
    report.add(
        f"allocate and free, 4 KiB, among {scaled(HOLES):,} holes of random sizes",
        among(fragmented, scaled(5)),
        {"with nothing else": ("time", 1.5)},
    )
    report.add(
        f"allocate and free, 4 KiB, among {scaled(LIVE):,} live arrays",
        among(crowded, scaled(5)),
        {"with nothing else": ("time", 2.0)},
    )


# --- the allocator without Python


def compiler() -> list[str] | None:
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    return next(([name] for name in ("gcc", "cc", "clang") if shutil.which(name)), None)


def compile_pool(folder: Path) -> Path:
    command = compiler()
    if command is None:
        raise OSError("no C compiler; set CC")
    program = folder / "pool"
    sources = [
        HERE / "pool.c",
        *sorted((ROOT / "src" / "core").glob("*.c")),
        *(ROOT / "src" / "backend" / name for name in ("um_backend_host.c", "um_numa.c")),
    ]
    flags = [
        "-std=c11",
        "-O3",
        "-pthread",
        "-DUM_HAVE_CUDA=0",
        "-D_GNU_SOURCE",
        f"-I{ROOT / 'src'}",
    ]
    flags += shlex.split(os.environ.get("CFLAGS", ""))
    subprocess.run([*command, *flags, *sources, "-lm", "-ldl", "-o", program], check=True)
    return program


def run_pool(turns: int, scale: int) -> dict[tuple[str, str], list[float]]:
    """What each turn of pool.c found, by what was measured and of whom; nanoseconds where it is a time."""
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = compile_pool(Path(folder))
        done = subprocess.run(
            [program, str(turns), str(scale)], check=True, capture_output=True, text=True
        )
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        value = figure["ns"] if "ns" in figure else figure["value"]
        found.setdefault((figure["name"], figure["who"]), []).append(value)
    return found


def in_c(report: Report) -> None:
    try:
        found = run_pool(scaled(7), max(1, HOLES // scaled(HOLES)))
    except (OSError, subprocess.CalledProcessError) as error:
        report.add("C: the pool alone", {}, missing={"umem": str(error)})
        return

    def us(name: str, who: str = "umem") -> float:
        return statistics.median(found[name, who]) / 1e3

    def add(name: str, aims: dict[str, tuple[str, float | None]]) -> None:
        report.add(
            f"C: allocate and free, {name}",
            {who: us(name, who) for who in ("umem", "malloc")},
            aims,
        )

    add("4 KiB", {"umem": ("microseconds", 0.030), "malloc": ("time", None)})
    add("1 MiB", {"malloc": ("time", None)})
    add("64 MiB", {"malloc": ("time", None)})
    add("random sizes", {"malloc": ("time", None)})
    for name, of in (("4 KiB", "4 KiB, holes"), ("random sizes", "random sizes, holes")):
        report.add(
            f"C: allocate and free, {name}, among {scaled(HOLES):,} holes of random sizes",
            {"umem": us(of), "with nothing else": us(name)},
            {"with nothing else": ("time", 1.5)},
        )
    report.add(
        f"C: allocate and free, 4 KiB, among {scaled(LIVE):,} live blocks",
        {"umem": us("4 KiB, live"), "with nothing else": us("4 KiB")},
        {"with nothing else": ("time", 2.0)},
    )
    threads(report, us)
    counts: dict[str, float | None] = {
        "bookkeeping bytes of a live block": 128,
        "blocks lost by threads": 0,
        "share of the held memory that is in use, holes": None,
    }
    for name, most in counts.items():
        report.add_count(f"C: {name}", max(map(abs, found[name, "umem"])), most)


def threads(report: Report, us: Callable[..., float]) -> None:
    cores = len(os.sched_getaffinity(0))
    report.add(
        "C: allocate and free, 4 KiB, eight threads at once",
        {
            "umem": us("4 KiB, eight threads"),
            "one thread": us("4 KiB, one thread"),
            "malloc": us("4 KiB, eight threads", "malloc"),
            "malloc, one thread": us("4 KiB, one thread", "malloc"),
        },
        {"one thread": ("rate", 3.0 if cores >= 8 else None), "malloc": ("time", None)},
        note=f"time per pair of all threads together; {cores} cores"
        + ("" if cores >= 8 else ": too few for the aim of 3"),
    )


# --- calls of the driver


def driver_calls(report: Report) -> None:
    """Counted with the driver that stands in for CUDA's in the tests, where it can be built."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from fake_cuda import build

        library = build.build(ROOT / "build" / "fake_cuda")
    except (ImportError, OSError, RuntimeError) as error:
        report.add("calls of the driver", {}, missing={"umem": str(error).partition("\n")[0]})
        return
    finally:
        sys.path.remove(str(ROOT / "tests"))
    told = run_child(
        [HERE / "calls.py", library], UMEM_BACKEND="cuda", UMEM_CUDA_LIBRARY=str(library)
    )
    found = {line["name"]: line["calls"] for line in map(json.loads, told.splitlines())}
    for name, calls in found.items():
        most = found["add(a, b, out=c)"] if name == "c = a + b" else 0
        report.add_count(
            f"calls of the driver: {name}", calls, None if name.startswith("add") else most
        )


# --- from cold


def run_cold(kind: str, count: int) -> float:
    """Microseconds an array."""
    return float(run_child([HERE / "cold.py", kind, str(count)])) / count * 1e6


def cold(report: Report, on_gpu: bool) -> None:
    count = scaled(COLD)
    kinds = {"umem": "umem", "np.empty": "numpy"}
    if on_gpu:
        kinds |= {"torch": "torch-cuda", "cupy": "cupy"}
    else:
        kinds["torch, on the host"] = "torch-cpu"
    missing = {}
    times: dict[str, list[float]] = {}
    for _ in range(scaled(5)):
        for name, kind in kinds.items():
            if name in missing:
                continue
            try:
                times.setdefault(name, []).append(run_cold(kind, count))
            except RuntimeError as error:
                missing[name] = str(error)
                times.pop(name, None)
    report.add(
        f"the first {count} arrays of 1024 x 1024 float32 of a process, each",
        {name: statistics.median(values) for name, values in times.items()},
        {"np.empty": ("time", None), "torch": ("time", 0.2), "cupy": ("time", None)},
        missing=missing,
    )


# --- arrays that come and go


def reuse(report: Report) -> None:
    """On the host. Pages of NumPy's large arrays go back to the system with each, and come anew, zeroed."""
    for size in sorted({MIB, scaled(32) * MIB}):
        count = size // 4

        def fill(make, count=count) -> None:
            np.asarray(make(count, np.float32)).fill(1)

        report.add(
            f"allocate, fill and free, {size // MIB} MiB",
            measure(
                {
                    "umem": lambda fill=fill: fill(umem.empty),
                    "np.empty": lambda fill=fill: fill(np.empty),
                }
            ),
            {"np.empty": ("time", 1.0 if size >= 32 * MIB else None)},
        )


def temporaries(report: Report, on_gpu: bool) -> None:
    settle = umem.synchronize
    for size in sorted({MIB, scaled(64) * MIB}):
        count = size // 4
        a, b = (umem.ones(count, dtype=np.float32) for _ in range(2))
        candidates: Candidates = {"umem": lambda a=a, b=b: a + b}
        if on_gpu:
            import torch

            settle = torch.cuda.synchronize
            umem.prefetch([a, b], "cuda")
            ta, tb = (torch.ones(count, device="cuda") for _ in range(2))
            candidates["torch"] = lambda ta=ta, tb=tb: ta + tb
            cupy = optional("cupy")
            if cupy:
                ca, cb = (cupy.ones(count, dtype=cupy.float32) for _ in range(2))
                candidates["cupy"] = lambda ca=ca, cb=cb: ca + cb
        else:
            na, nb = (np.ones(count, dtype=np.float32) for _ in range(2))
            candidates["NumPy"] = lambda na=na, nb=nb: na + nb
        report.add(
            f"c = a + b, {size // MIB} MiB each, c a new array each time",
            measure(candidates, settle),
            dict.fromkeys(("torch", "cupy", "NumPy"), ("time", None)),
        )


# --- a recorded program


def read_trace(path: Path) -> list[tuple[int, int]]:
    """(id, bytes) of each allocation, (id, -1) of each free. Lines: `a ID BYTES …`, `f ID …`, `# …`."""
    opened = gzip.open if path.suffix == ".gz" else open
    events = []
    numbers: dict[str, int] = {}
    with opened(path, "rt") as file:
        for line in file:
            match line.split():
                case ["a", name, size, *_]:
                    events.append((numbers.setdefault(name, len(numbers)), int(size)))
                case ["f", name, *_]:
                    events.append((numbers[name], -1))
                case []:
                    pass
                case [first, *_] if not first.startswith("#"):
                    raise ValueError(f"{path}: not a line of a trace: {line!r}")
    return events


def replay(events: list[tuple[int, int]], allocate: Allocate) -> None:
    alive: list[object] = [None] * (max(number for number, _ in events) + 1)
    for number, size in events:
        alive[number] = None if size < 0 else allocate(size)


def traces(report: Report, peers: Peers, settle: Callable[[], object]) -> None:
    for path in sorted((HERE / "traces").iterdir()):
        events = read_trace(path)
        figures = measure(
            {
                name: lambda allocate=allocate, events=events: replay(events, allocate)
                for name, allocate in peers.found.items()
            },
            settle,
            turns=11,
            seconds=0.05,
        )
        report.add(
            f"replay of {path.name.partition('.')[0]}, each of {len(events):,} allocations and frees",
            {name: us / len(events) for name, us in figures.items()},
            {name: ("time", None) for name in figures if name != "umem"},
            missing=peers.missing,
        )


def run(report: Report, on_gpu: bool) -> None:
    peers = allocators(on_gpu)
    settle: Callable[[], object] = umem.synchronize
    if on_gpu:
        import torch

        settle = torch.cuda.synchronize
    small(report, peers)
    many(report)
    in_c(report)
    cold(report, on_gpu)
    if not on_gpu:
        driver_calls(report)
        reuse(report)
    temporaries(report, on_gpu)
    traces(report, peers, settle)
