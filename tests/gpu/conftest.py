"""GPU tests: the contract on a real device, with the other libraries that are there.

`make gpu` runs this folder and the whole contract suite with UMEM_TEST_BACKENDS=cuda, and writes the
outcome to benchmarks/results.
"""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def backend() -> str:
    return "cuda"


@pytest.fixture
def torch():
    module = pytest.importorskip("torch")
    assert module.cuda.is_available(), "torch sees no GPU"
    return module


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def jax():
    import os

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return pytest.importorskip("jax")


@pytest.fixture
def cuda(monkeypatch):
    # numba-cuda registers np.row_stack when it compiles its first kernel; NumPy 2.5 has removed that name.
    monkeypatch.setattr(np, "row_stack", np.vstack, raising=False)
    return pytest.importorskip("numba.cuda")
