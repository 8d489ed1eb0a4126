"""Seconds that a process takes for its first arrays, all kept: `cold.py umem|numpy|torch-cpu|torch-cuda|cupy COUNT`.

The library's context is there before the time starts; its memory is not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SIDE = 1024


def maker(kind: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """What makes an array of SIDE x SIDE float32, and what ends the time."""
    if kind == "umem":
        import numpy as np

        import umem

        umem.zeros(1)
        umem.synchronize()
        return lambda: umem.empty((SIDE, SIDE), np.float32), lambda: None
    if kind == "numpy":
        import numpy as np

        return lambda: np.empty((SIDE, SIDE), np.float32), lambda: None
    if kind == "cupy":
        import cupy

        cupy.zeros(1)
        cupy.cuda.Device().synchronize()
        return lambda: cupy.empty((SIDE, SIDE), cupy.float32), cupy.cuda.Device().synchronize
    import torch

    if kind == "torch-cpu":
        torch.zeros(1)
        return lambda: torch.empty((SIDE, SIDE)), lambda: None
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return lambda: torch.empty((SIDE, SIDE), device="cuda"), torch.cuda.synchronize


def main() -> int:
    make, settle = maker(sys.argv[1])
    count = int(sys.argv[2])
    start = time.perf_counter()
    kept = [make() for _ in range(count)]
    settle()
    took = time.perf_counter() - start
    del kept
    print(took)
    return 0


if __name__ == "__main__":
    sys.exit(main())
