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
import sys
from pathlib import Path

import kernels
import pool
import report
import views
from machine import machine

import umem

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gpu", action="store_true", help="also what needs a GPU, torch and, if there, CuPy"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument(
        "--effort",
        type=float,
        default=1.0,
        help="factor for turns, repeats and numbers of blocks; below 1 the figures say little",
    )
    options = parser.parse_args()
    if options.gpu and umem.info()["backend"] != "cuda":
        print(f"no GPU: {umem.info()['reason']}", file=sys.stderr)
        return 1

    report.effort = options.effort
    lines = report.Report()
    views.host(lines)
    pool.run(lines, options.gpu)
    if umem.info()["backend"] == "host":
        kernels.host(lines)
    if options.gpu:
        views.gpu(lines)
        kernels.gpu(lines)
    facts = machine()
    where = facts["devices"][0] if options.gpu else f"cpu-{platform.machine()}"
    slug = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"bench-{slug}.json"
    path.write_text(json.dumps({"machine": facts, "lines": lines.lines}, indent=1) + "\n")
    print(f"written: {path}")
    for name in lines.missed():
        print(f"aim not met: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
