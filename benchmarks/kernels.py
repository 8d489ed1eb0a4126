"""What umem's own kernels take."""

from __future__ import annotations

import numpy as np
from peers import optional
from report import MIB, Candidates, Report, measure

import umem


def gpu(report: Report) -> None:
    import torch

    cupy = optional("cupy")
    sync = torch.cuda.synchronize

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
