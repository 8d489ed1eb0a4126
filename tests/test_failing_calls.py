"""The loop of test_failures.py for memory of the host: each call of the extension into CPython, NumPy and libc fails in turn.

Every failure raises MemoryError, or the operation does without and the result is right. It leaks nothing, leaves
arrays as they were, and the next operation works.
"""

import gc

import numpy as np
import pytest

from failing_calls import FailingCalls
from support import allocated
from test_failures import SCENARIOS as DRIVER_SCENARIOS
from test_failures import VARYING, Stage, value

SCENARIOS = {**DRIVER_SCENARIOS}


@pytest.fixture
def failing(umem):
    return FailingCalls(umem._core)


def settle(umem, backend, fake_ledger):
    gc.collect()
    umem.synchronize()
    umem.trim()
    return allocated(umem), fake_ledger()


@pytest.fixture
def ledger(umem, backend):
    """What the fake driver holds for umem, but for what is kept for later; nothing on another backend."""
    if backend != "fake":
        return lambda: None
    from backends import fake_library
    from fake_cuda.control import FakeCuda

    fake = FakeCuda(fake_library())
    return lambda: {kind: fake.live(kind) for kind in ("managed", "device", "context", "library")}


@pytest.mark.parametrize("onwards", [False, True], ids=["one", "all later too"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_call_fails(umem, backend, failing, ledger, name, onwards):
    scenario = SCENARIOS[name]
    expected = value(scenario(Stage(umem)))
    before = settle(umem, backend, ledger)
    for n in range(1, 2000):
        stage = Stage(umem)
        error = None
        result = None
        try:
            result = failing.run(n, lambda: scenario(stage), onwards=onwards)
        except MemoryError as caught:
            error = caught
        except Exception as caught:
            raise AssertionError(f"call {n}, {failing.failed}, failed") from caught
        failed = failing.failed
        if error is None and name not in VARYING:
            assert value(result) == expected, f"{failed} failed and the result is wrong"
        stage.check()
        del stage, error, result
        assert settle(umem, backend, ledger) == before, f"{failed} failed and something leaked"
        if failed is None:
            break
    else:
        raise AssertionError("the scenario never ends without a failure")
    assert n > 1
