"""The backends that a run of the suite covers, and what selects each of them."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent

BACKENDS = tuple(os.environ.get("UMEM_TEST_BACKENDS", "host,fake").split(","))

#: the fake driver as that of other machines, for tests that name them: what its environment says of each
MACHINES = {
    "fake 12.0": {"FAKECU_VERSION": "12000"},
    "fake 12.8": {"FAKECU_VERSION": "12080"},
    "fake 8 GPUs": {"FAKECU_DEVICES": "8"},
    "fake small": {"FAKECU_MEMORY": "8M"},
    "fake not concurrent": {"FAKECU_CONCURRENT": "0"},
}

#: environment under which each backend's copy of the package opens its context
SETTINGS = {
    "host": {"UMEM_BACKEND": "host"},
    "fake": {"UMEM_BACKEND": "cuda"},
    "cuda": {"UMEM_BACKEND": "cuda"},
    **{name: {"UMEM_BACKEND": "cuda", **settings} for name, settings in MACHINES.items()},
}


def is_fake(backend: str) -> bool:
    return backend.startswith("fake")


@functools.cache
def fake_library(backend: str = "fake") -> str:
    """Path of the fake driver, built at first use. Each machine is a copy, whose state is its own in one process."""
    from fake_cuda import build

    library = build.build(HERE.parent / "build" / "fake_cuda")
    if backend == "fake":
        return str(library)
    copy = library.with_name(f"{library.stem}-{backend.replace(' ', '-')}.so")
    if not copy.exists() or copy.read_bytes() != library.read_bytes():
        fresh = copy.with_suffix(f".{os.getpid()}")
        shutil.copy(library, fresh)
        fresh.replace(copy)
    return str(copy)


def environment(backend: str) -> dict[str, str]:
    """Variables that select a backend, for this process or a child."""
    settings = dict(SETTINGS[backend])
    if is_fake(backend):
        settings["UMEM_CUDA_LIBRARY"] = fake_library(backend)
    return settings
