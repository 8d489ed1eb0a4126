"""Benchmarks, side by side with the peers that are installed: `make bench` (CPU) and `make bench-gpu`.

All figures of a line come from one run: its candidates take turns, and each figure is the median of
the turns. Machines are shared and noisy, so ratios count. The table goes to stdout, everything to
benchmarks/results/bench-<machine>.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import machine

import umem

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20

Candidates = dict[str, Callable[[], object]]


def loops_for(call: Callable[[], object], seconds: float) -> int:
    """How many calls take about `seconds`."""
    loops = 1
    while True:
        start = time.perf_counter()
        for _ in range(loops):
            call()
        took = time.perf_counter() - start
        if took > seconds / 4 or loops >= 1 << 20:
            return max(1, int(loops * seconds / max(took, 1e-9)))
        loops *= 4


def measure(
    candidates: Candidates,
    settle: Callable[[], object] = lambda: None,
    turns: int = 15,
    seconds: float = 0.02,
) -> dict[str, float]:
    """Median microseconds a call for each candidate; `settle` ends a turn, inside its time."""
    loops = {}
    for name, call in candidates.items():
        call()
        settle()
        loops[name] = loops_for(call, seconds)
        settle()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(turns):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                call()
            settle()
            times[name].append((time.perf_counter() - start) / loops[name] * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


class Report:
    """Collects lines: figures in µs a call, and umem's ratio to a peer with the aim for it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def add(
        self,
        name: str,
        figures: dict[str, float],
        aims: dict[str, tuple[str, float]] | None = None,
        bytes_moved: int = 0,
    ) -> None:
        """aims: peer -> ("time", most): umem's over the peer's; ("rate", least): likewise for the bytes moved."""
        line: dict[str, object] = {"name": name, "microseconds": figures}
        if bytes_moved:
            line["gigabytes_per_second"] = {
                who: bytes_moved / us / 1e3 for who, us in figures.items()
            }
        ratios = {}
        for peer, (kind, bound) in (aims or {}).items():
            if peer not in figures:
                continue
            ratio = (
                figures["umem"] / figures[peer]
                if kind == "time"
                else figures[peer] / figures["umem"]
            )
            ratios[peer] = {
                "kind": kind,
                "ratio": ratio,
                "aim": bound,
                "met": ratio <= bound if kind == "time" else ratio >= bound,
            }
        line["ratios"] = ratios
        self.lines.append(line)
        self.show(line)

    @staticmethod
    def show(line: dict[str, object]) -> None:
        print(line["name"])
        rates = line.get("gigabytes_per_second", {})
        for who, us in line["microseconds"].items():
            rate = f"  {rates[who]:9.0f} GB/s" if rates else ""
            ratio = line["ratios"].get(who)
            said = ""
            if ratio:
                sign = "<=" if ratio["kind"] == "time" else ">="
                met = "" if ratio["met"] else ", NOT MET"
                said = (
                    f"  {ratio['kind']} ratio {ratio['ratio']:.3f} (aim {sign} {ratio['aim']}{met})"
                )
            print(f"    {who:28s} {us:12.3f} us{rate}{said}")


def optional(name: str):
    try:
        return __import__(name)
    except ImportError:
        return None


def host_views(report: Report) -> None:
    a = umem.zeros(1000, dtype=np.float32)
    n = np.zeros(1000, dtype=np.float32)
    report.add(
        "np.asarray(a)", measure({"umem": lambda: np.asarray(a), "ndarray": lambda: np.asarray(n)})
    )
    report.add(
        "memoryview(a)", measure({"umem": lambda: memoryview(a), "ndarray": lambda: memoryview(n)})
    )
    report.add(
        "allocate and free, 4 KiB",
        measure(
            {
                "umem": lambda: umem.empty(1024, dtype=np.float32),
                "np.empty": lambda: np.empty(1024, dtype=np.float32),
            }
        ),
    )


def gpu_figures(report: Report) -> None:
    import torch

    cupy = optional("cupy")
    sync = torch.cuda.synchronize

    a = umem.zeros(1000, dtype=np.float32)
    candidates: Candidates = {"umem": lambda: torch.as_tensor(a)}
    if cupy:
        c = cupy.zeros(1000, dtype=cupy.float32)
        candidates["cupy"] = lambda: torch.as_tensor(c)
    report.add("torch.as_tensor(a)", measure(candidates), {"cupy": ("time", 0.5)})

    def add_candidates(count: int) -> Candidates:
        x, y, out = (umem.ones(count, dtype=np.float32) for _ in range(3))
        umem.prefetch([x, y, out], "cuda")
        tx, ty, tout = (torch.ones(count, device="cuda") for _ in range(3))
        found: Candidates = {
            "umem": lambda: umem.add(x, y, out=out),
            "torch": lambda: torch.add(tx, ty, out=tout),
        }
        if cupy:
            cx, cy, cout = (cupy.ones(count, dtype=cupy.float32) for _ in range(3))
            found["cupy"] = lambda: cupy.add(cx, cy, out=cout)
        return found

    report.add(
        "add(a, b, out=c), 1,024 float32",
        measure(add_candidates(1024), sync),
        {"torch": ("time", 0.7), "cupy": ("time", 0.7)},
    )

    count = 64 * MIB
    candidates = add_candidates(count)
    source, target = (
        torch.ones(count * 3 // 2, device="cuda") for _ in range(2)
    )  # the same bytes read and written as an add
    candidates["device-to-device copy"] = lambda: target.copy_(source)
    report.add(
        "add(a, b, out=c), 3 x 256 MiB resident",
        measure(candidates, sync, turns=21),
        {"torch": ("rate", 0.97), "device-to-device copy": ("rate", 0.97)},
        bytes_moved=3 * 4 * count,
    )

    big = umem.zeros((1000, 1000), dtype=np.float32)
    big += np.float32(0.5)
    big.prefetch("cuda")
    t = torch.full((1000, 1000), 0.5, device="cuda")
    n = np.full(
        (1000, 1000), 0.5, dtype=np.float32
    )  # the formatting is NumPy's: no text of its kind is quicker
    report.add(
        "repr of 1000 x 1000 GPU-resident float32",
        measure(
            {
                "umem": lambda: repr(big),
                "torch": lambda: repr(t),
                "NumPy, on the host": lambda: repr(n),
            }
        ),
        {"torch": ("time", 0.1)},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gpu", action="store_true", help="also what needs a GPU, torch and, if there, CuPy"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if options.gpu and umem.info()["backend"] != "cuda":
        print(f"no GPU: {umem.info()['reason']}", file=sys.stderr)
        return 1

    report = Report()
    host_views(report)
    if options.gpu:
        gpu_figures(report)
    facts = machine()
    where = facts["devices"][0] if options.gpu else f"cpu-{platform.machine()}"
    slug = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"bench-{slug}.json"
    path.write_text(json.dumps({"machine": facts, "lines": report.lines}, indent=1) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
