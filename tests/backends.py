"""The backends that a run of the suite covers, and what selects each of them."""

from __future__ import annotations

import functools
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent

BACKENDS = tuple(os.environ.get("UMEM_TEST_BACKENDS", "host,fake").split(","))

#: environment under which each backend's copy of the package opens its context
SETTINGS = {
    "host": {"UMEM_BACKEND": "host"},
    "fake": {"UMEM_BACKEND": "cuda"},
    "cuda": {"UMEM_BACKEND": "cuda"},
}


@functools.cache
def fake_library() -> str:
    """Path of the fake driver, built at first use."""
    from fake_cuda import build

    return str(build.build(HERE.parent / "build" / "fake_cuda"))


def environment(backend: str) -> dict[str, str]:
    """Variables that select a backend, for this process or a child."""
    settings = dict(SETTINGS[backend])
    if backend == "fake":
        settings["UMEM_CUDA_LIBRARY"] = fake_library()
    return settings
