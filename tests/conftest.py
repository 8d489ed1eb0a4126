"""One suite over every backend: a test that takes `umem` runs on each of them in turn.

`umem` is the package as imported for that backend. The extension keeps its state per module, so one process can hold
several copies of the package, each with a context of its own; the active copy is the one in
`sys.modules`, so that pickles and other look-ups by name find it.

    host   ordinary memory
    fake   the CUDA backend over the driver of tests/fake_cuda
    cuda   the CUDA backend over the system's driver, with UMEM_TEST_BACKENDS=cuda (what `make gpu` does)

Tests that name them in their `backends` mark run on the machines of backends.py too: other drivers and devices.

After each test the books must balance: the fake driver's ledger of live objects and umem's own figures are what they were
before it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import support  # noqa: E402  registers hypothesis' profiles before pytest chooses one
from backends import BACKENDS, MACHINES, environment, fake_library, is_fake  # noqa: E402
from results import pytest_runtest_logreport, pytest_sessionfinish  # noqa: E402, F401  hooks
from skips import pytest_configure  # noqa: E402, F401  hook

NOT_HERE = "not here"

#: lines for the end of the report
SUMMARY: list[str] = []

support.make_modules_immortal()

# The C tests run the backend on the fake driver.
collect_ignore = [] if "fake" in BACKENDS else ["test_c.py"]

_copies: dict[str, dict[str, object]] = {}


def _is_umem(name: str) -> bool:
    return name == "umem" or name.startswith("umem.")


def _modules() -> dict[str, object]:
    return {name: module for name, module in sys.modules.items() if _is_umem(name)}


def activate(backend: str):
    """Makes `backend`'s copy of the package the imported one, importing it and opening its context when it is new."""
    for name in _modules():
        del sys.modules[name]
    if backend in _copies:
        sys.modules.update(_copies[backend])
        return sys.modules["umem"]
    settings = environment(backend)
    saved = {key: os.environ.get(key) for key in ("UMEM_BACKEND", "UMEM_CUDA_LIBRARY", *settings)}
    for key in saved:
        os.environ.pop(key, None)
    os.environ.update(settings)
    try:
        package = importlib.import_module("umem")
        package.info()  # opens the context while the settings hold
    finally:
        for key, value in saved.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
    warm_up(package)
    _copies[backend] = _modules()
    return package


def warm_up(package) -> None:
    """Makes umem make all that it makes once and keeps: what is alive after that grows no more.

    That is the page-locked buffer and the kernels' libraries, and of each device a context, the stream for reads, the
    legacy stream's event, and for the driver's batch calls a stream and an event.
    """
    for device in range(len(package.devices())):
        arrays = [package.zeros(40_000, "f4", device=device) for _ in range(2)]
        for dtype in ("f4", "i8"):
            a = package.ones(40_000, dtype, device=device)
            package.add(a, a, out=a)
            a.astype("i4").sum()
        package.prefetch(arrays, f"cuda:{device}")
        package.add(arrays[0], 1, out=arrays[0])
        with package.stream(package.Stream(2, device)):
            package.add(arrays[0], 1, out=arrays[1])
        arrays[1].read()
    arrays = a = None
    collect_garbage()
    package.synchronize()
    package.trim()


_known_modules = 0


def collect_garbage() -> None:
    """A full collection, made quick: what new modules brought (torch 180,000 objects) is set aside, once."""
    global _known_modules
    gc.collect()
    if len(sys.modules) != _known_modules:
        _known_modules = len(sys.modules)
        gc.freeze()


def pytest_generate_tests(metafunc):
    if "backend" not in metafunc.fixturenames or (HERE / "gpu") in metafunc.definition.path.parents:
        return  # tests/gpu/conftest.py has one backend
    only = metafunc.definition.get_closest_marker("backends")
    here = (*BACKENDS, *MACHINES) if "fake" in BACKENDS else BACKENDS
    chosen = BACKENDS if only is None else [name for name in here if name in only.args]
    metafunc.parametrize("backend", chosen or [NOT_HERE], indirect=True)


def pytest_collection_modifyitems(config, items):
    """Leaves out, instead of skipping, what is about a backend that this run does not have."""
    gone = [
        item
        for item in items
        if getattr(item, "callspec", None) and item.callspec.params.get("backend") == NOT_HERE
    ]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


def pytest_terminal_summary(terminalreporter):
    for line in SUMMARY:
        terminalreporter.write_line(line)


@pytest.fixture
def backend(request) -> str:
    """Name of the backend that the test runs on."""
    return request.param


@functools.cache
def control(backend: str):
    from fake_cuda.control import FakeCuda

    return FakeCuda(fake_library(backend))


#: of umem's own figures those that say what is alive
FIGURES = (
    "allocated_bytes.all.current",
    "reserved_bytes.all.current",
    "active.all.current",
    "waiting_bytes",
)


def books(package, backend: str) -> dict[str, int]:
    """What is alive, by kind, when nothing is pending."""
    statistics = package.memory_stats()
    alive = {name: statistics[name] for name in FIGURES}
    if is_fake(backend):
        fake = control(backend)
        fake.check()
        alive |= fake.ledger()
    return alive


_balance: dict[str, dict[str, int]] = {}  # the books after the last test


@pytest.fixture
def umem(backend, request):
    """The package on that backend; whatever the test changed in its settings is undone, and it must have leaked nothing."""
    package = activate(backend)
    before = _balance.get(backend) or books(package, backend)
    failed = request.session.testsfailed
    yield package
    for name in _modules():  # submodules imported by the test belong to the copy
        _copies[backend].setdefault(name, sys.modules[name])
    request.node.funcargs.clear()  # arrays that other fixtures made
    package.set_limit(None)
    package.on_out_of_memory(None)
    collect_garbage()
    package.synchronize()
    package.trim()
    _balance.pop(backend, None)
    if request.session.testsfailed > failed or request.node.get_closest_marker("leaks"):
        return  # a traceback holds what it had
    after = books(package, backend)
    grown = {kind: after[kind] - before[kind] for kind in after if after[kind] > before[kind]}
    assert not grown, f"the test leaves behind: {grown}"
    _balance[backend] = after


@pytest.fixture
def on_gpu(backend) -> bool:
    """Whether the backend is the CUDA one, with either driver."""
    return backend != "host"


@pytest.fixture
def fake(umem, backend):
    """Control of the fake driver behind `umem`, for tests marked `backends("fake")`; put back after the test."""
    driver = control(backend)
    yield driver
    driver.reset_faults()


@pytest.fixture
def fake_managed(umem, fake):
    """(address, NumPy view) of managed memory that another library of the process allocated."""
    with support.managed_memory(fake, 1 << 16) as pointer:
        yield pointer, np.ctypeslib.as_array((ctypes.c_float * 1024).from_address(pointer))
        gc.collect()
        umem.synchronize()


@pytest.fixture
def run_python(backend):
    """Runs code in a new interpreter on the same backend: its stdout; an exit status but 0 fails the test."""
    import subprocess

    def run(code: str, *, check: bool = True, **variables: str):
        path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, **environment(backend), "PYTHONPATH": path, **variables}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=HERE.parent,
            env=variables,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            return done.stdout
        return done

    return run
