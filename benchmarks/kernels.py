"""What umem's own kernels take."""

from __future__ import annotations

from functools import partial

import numpy as np
from peers import optional
from report import MIB, Candidates, Report, measure

import umem

#: random numbers into an array, by a generator of umem's or NumPy's; the dtype is the last word of the name
RANDOM = {
    "uniform float32": lambda rng, out: rng.random(dtype=np.float32, out=out),
    "uniform float64": lambda rng, out: rng.random(out=out),
    "normal float32": lambda rng, out: rng.standard_normal(dtype=np.float32, out=out),
    "normal float64": lambda rng, out: rng.standard_normal(out=out),
}


def host(report: Report) -> None:
    """Random numbers of the host backend, in one thread each."""
    count = MIB
    for title, draw in RANDOM.items():
        rng = umem.random.default_rng(1)
        out = umem.empty(count, dtype=title.split()[-1])
        candidates: Candidates = {"umem": partial(draw, rng, out)}
        for name in ("PCG64", "Philox"):
            other = np.random.Generator(getattr(np.random, name)(1))
            candidates[f"numpy, {name}"] = partial(draw, other, np.empty(count, out.dtype))
        report.add(
            f"{title}, {count:,} numbers, host",
            measure(candidates),
            {"numpy, PCG64": ("time", None), "numpy, Philox": ("time", None)},
            bytes_moved=out.nbytes,
        )


def gpu_random(report: Report) -> None:
    import torch

    cupy = optional("cupy")
    for title, draw in RANDOM.items():
        dtype = np.dtype(title.split()[-1])
        out = umem.empty(256 * MIB // dtype.itemsize, dtype=dtype)
        out.prefetch("cuda")
        target = torch.empty(out.shape, dtype=getattr(torch, dtype.name), device="cuda")
        normal = title.startswith("normal")
        candidates: Candidates = {
            "umem": partial(draw, umem.random.default_rng(1), out),
            "torch": target.normal_ if normal else target.uniform_,
            "fill by torch": partial(target.fill_, 1),
        }
        if cupy:
            rng = cupy.random.default_rng(1)
            function = rng.standard_normal if normal else rng.random
            candidates["cupy"] = partial(function, dtype=dtype, out=cupy.empty(out.shape, dtype))
        report.add(
            f"{title}, 256 MiB resident",
            measure(candidates, torch.cuda.synchronize, turns=21),
            {"torch": ("rate", 1.0), "fill by torch": ("rate", 0.9), "cupy": ("rate", None)},
            bytes_moved=out.nbytes,
        )


def gpu(report: Report) -> None:
    gpu_random(report)
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
    evaluate(report, count)


def evaluate(report: Report, count: int) -> None:
    """Five operations in one pass, against one pass each. The sine is one of them."""
    import torch

    cupy, numexpr = optional("cupy"), optional("numexpr")
    numbers = np.random.default_rng(1).normal(size=count).astype(np.float32)
    text = "2*a + b*sin(c) - 1"
    names = {name: umem.asarray(numbers) for name in "abc"}
    out = umem.empty(count, dtype=np.float32)
    umem.prefetch([*names.values(), out], "cuda")
    ta, tb, tc = (torch.as_tensor(numbers, device="cuda") for _ in range(3))
    source, target = (torch.ones(count * 2, device="cuda") for _ in range(2))  # as many bytes
    candidates: Candidates = {
        "umem": lambda: umem.evaluate(text, names, out=out),
        "torch": lambda: 2 * ta + tb * torch.sin(tc) - 1,
        "device-to-device copy": lambda: target.copy_(source),
    }
    if cupy:
        ca, cb, cc = (cupy.asarray(numbers) for _ in range(3))
        candidates["cupy"] = lambda: 2 * ca + cb * cupy.sin(cc) - 1
    report.add(
        f"evaluate({text!r}), 4 x 256 MiB resident",
        measure(candidates, torch.cuda.synchronize, turns=21),
        {"torch": ("rate", 2.5), "cupy": ("rate", 2.5), "device-to-device copy": ("rate", None)},
        bytes_moved=4 * 4 * count,
    )

    small = {name: array[:1024] for name, array in names.items()}
    small_out = out[:1024]
    sa, sb, sc = (t[:1024] for t in (ta, tb, tc))
    report.add(
        f"evaluate({text!r}), 1,024 float32",
        measure(
            {
                "umem": lambda: umem.evaluate(text, small, out=small_out),
                "torch": lambda: 2 * sa + sb * torch.sin(sc) - 1,
            },
            torch.cuda.synchronize,
        ),
        {"torch": ("time", None)},
    )
    if numexpr:
        host = dict.fromkeys("abc", numbers)
        host_out = np.empty_like(numbers)
        report.add(
            f"evaluate({text!r}), 4 x 256 MiB: umem on the GPU, numexpr on the host",
            measure(
                {
                    "umem": candidates["umem"],
                    "numexpr": lambda: numexpr.evaluate(
                        text, host, out=host_out, casting="same_kind"
                    ),
                },
                torch.cuda.synchronize,
                turns=5,
            ),
            {"numexpr": ("rate", None)},
        )
