"""Handing an array to another library."""

from __future__ import annotations

import numpy as np
from peers import optional
from report import Candidates, Report, measure

import umem


def host(report: Report) -> None:
    a = umem.zeros(1000, dtype=np.float32)
    n = np.zeros(1000, dtype=np.float32)
    report.add(
        "np.asarray(a)", measure({"umem": lambda: np.asarray(a), "ndarray": lambda: np.asarray(n)})
    )
    report.add(
        "memoryview(a)", measure({"umem": lambda: memoryview(a), "ndarray": lambda: memoryview(n)})
    )


def gpu(report: Report) -> None:
    import torch

    cupy = optional("cupy")
    a = umem.zeros(1000, dtype=np.float32)
    candidates: Candidates = {"umem": lambda: torch.as_tensor(a)}
    if cupy:
        c = cupy.zeros(1000, dtype=cupy.float32)
        candidates["cupy"] = lambda: torch.as_tensor(c)
    report.add("torch.as_tensor(a)", measure(candidates), {"cupy": ("time", 0.5)})

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
