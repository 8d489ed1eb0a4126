"""Calls of the driver that operations make once memory is at hand: `calls.py LIBRARY`, with the fake driver of tests/.

A line of JSON per operation. They cost microseconds each, and are the same on every machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import umem

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from fake_cuda.control import FakeCuda

REPEATS = 100
MIB = 1 << 20


def main() -> int:
    fake = FakeCuda(sys.argv[1])
    a, b, c = (umem.ones(1024, np.float32) for _ in range(3))
    umem.prefetch([a, b, c], "cuda")

    def tell(name: str, call: Callable[[], object]) -> None:
        call()
        before = fake.counter("calls")
        for _ in range(REPEATS):
            call()
        print(json.dumps({"name": name, "calls": (fake.counter("calls") - before) / REPEATS}))

    tell("allocate and free, 4 KiB", lambda: umem.empty(1024, np.float32))
    tell("allocate and free, 1 MiB", lambda: umem.empty(MIB, np.uint8))
    tell("allocate and free, 64 MiB", lambda: umem.empty(64 * MIB, np.uint8))
    tell("add(a, b, out=c)", lambda: umem.add(a, b, out=c))
    tell("c = a + b", lambda: a + b)
    return 0


if __name__ == "__main__":
    sys.exit(main())
