"""What umem says about the machine and itself, and what importing it costs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = {
    "create": ["empty", "zeros", "ones", "full", "arange", "linspace", "array", "asarray", "copy", "from_dlpack",
               "empty_like", "zeros_like", "ones_like", "full_like", "fromfile", "load", "save"],
    "array": ["ndarray"],
    "placement": ["prefetch"],
    "streams": ["stream", "deferred", "synchronize", "Stream"],
    "kernels": ["add", "subtract", "multiply", "true_divide", "negative", "axpy"],
    "memory": ["memory_stats", "memory_summary", "memory_scope", "record_allocations", "set_limit", "get_limit", "trim",
               "reset_peak", "on_out_of_memory"],
    "system": ["devices", "info", "__version__"],
    "errors": ["CudaError", "OutOfMemoryError", "DriverNotFoundError"],
}  # fmt: skip


class TestPackage:
    @pytest.mark.parametrize("name", [name for names in PUBLIC.values() for name in names])
    def test_public_names(self, umem, name):
        assert getattr(umem, name) is not None
        assert name in umem.__all__
        assert name in dir(umem)
        if name != "__version__":
            assert getattr(umem, name).__doc__

    def test_all_names_are_there(self, umem):
        for name in umem.__all__:
            assert hasattr(umem, name)
        with pytest.raises(AttributeError, match="nonsense"):
            umem.nonsense

    def test_version(self, umem):
        with (ROOT / "pyproject.toml").open("rb") as file:
            assert umem.__version__ == tomllib.load(file)["project"]["version"]
        assert umem.info()["version"] == umem.__version__

    def test_errors(self, umem):
        assert issubclass(umem.CudaError, RuntimeError)
        assert issubclass(umem.OutOfMemoryError, MemoryError)
        assert issubclass(umem.DriverNotFoundError, RuntimeError)
        assert not issubclass(umem.OutOfMemoryError, RuntimeError)
        for name in PUBLIC["errors"]:
            assert getattr(umem, name).__module__ == "umem"
        error = umem.CudaError("by hand")
        assert (error.code, error.name, error.call) == (0, "", "")

    def test_typed(self):
        assert (ROOT / "umem" / "py.typed").exists()
        assert (ROOT / "umem" / "_core.pyi").exists()


class TestInfo:
    def test_what_it_says(self, umem, on_gpu):
        info = umem.info()
        for key in ("version", "backend", "reason", "driver", "devices"):
            assert key in info
        assert info["backend"] == ("cuda" if on_gpu else "host")
        assert isinstance(info["reason"], str)
        assert info["reason"]
        assert (info["driver"] is not None) == on_gpu
        assert info["devices"] == umem.devices()
        json.dumps(info)

    def test_is_new_each_time(self, umem):
        umem.info()["backend"] = "mine"
        umem.devices().append(5)
        assert umem.info()["backend"] in ("host", "cuda")
        assert 5 not in umem.devices()

    @pytest.mark.backends("host")
    def test_no_devices_without_a_gpu(self, umem):
        assert umem.devices() == []
        assert "UMEM_BACKEND" in umem.info()["reason"]

    @pytest.mark.backends("fake", "cuda")
    def test_devices(self, umem):
        devices = umem.devices()
        assert [d["index"] for d in devices] == list(range(len(devices)))
        for device in devices:
            assert device["name"]
            assert device["total_memory"] > 0
            assert len(device["compute_capability"]) == 2
            assert type(device["managed_memory"]) is bool
            assert type(device["concurrent_managed_access"]) is bool


@pytest.mark.backends("host", "fake")
class TestCommandLine:
    @pytest.fixture
    def run(self, backend):
        import os

        import conftest

        def run(*arguments, status=0, **variables):
            environment = {
                **os.environ,
                **conftest.environment(backend),
                "PYTHONPATH": str(ROOT),
                **variables,
            }
            command = [sys.executable, "-m", "umem", *arguments]
            done = subprocess.run(
                command,
                env=environment,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == status, done
            return done

        return run

    def test_info(self, umem, run, on_gpu):
        out = run("info").stdout
        assert umem.__version__ in out
        assert ("cuda" if on_gpu else "host") in out
        assert umem.info()["reason"] in out
        if on_gpu:
            for device in umem.devices():
                assert device["name"] in out
        assert np.__version__ in out

    def test_info_as_json(self, umem, run):
        said = json.loads(run("info", "--json").stdout)
        known = json.loads(json.dumps(umem.info()))
        for key in ("version", "backend", "reason", "driver", "library"):
            assert said[key] == known[key]
        assert len(said["devices"]) == len(known["devices"])

    def test_misuse(self, run):
        for arguments in ((), ("nonsense",), ("info", "--nonsense"), ("info", "more")):
            done = run(*arguments, status=2)
            assert "usage" in done.stderr
            assert "Traceback" not in done.stderr

    def test_help(self, run):
        out = run("--help").stdout
        assert "info" in out
        assert "demo" in out

    def test_an_unusable_driver_is_said_without_a_traceback(self, run):
        done = run(
            "info", status=1, UMEM_BACKEND="cuda", UMEM_CUDA_LIBRARY="/nonexistent/libcuda.so"
        )
        assert "/nonexistent/libcuda.so" in done.stderr
        assert "Traceback" not in done.stderr
        done = run("info", status=1, UMEM_ALLOC_CONF="nonsense")
        assert "UMEM_ALLOC_CONF" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.backends("host", "fake")
class TestImport:
    def test_touches_no_driver_and_starts_nothing(self, run_python):
        out = run_python(
            """
import os, threading
import numpy
threads, files = threading.active_count(), len(os.listdir("/proc/self/task"))
import umem
maps = open("/proc/self/maps").read()
print("libcuda" in maps or "fakecuda" in maps)
print(threading.active_count() - threads, len(os.listdir("/proc/self/task")) - files)
"""
        )
        assert out.split() == ["False", "0", "0"]

    def test_loads_no_other_library(self, run_python):
        code = """
import sys
heavy = {"torch", "cupy", "numba", "jax", "sklearn", "scipy", "pandas", "matplotlib", "IPython", "cuda", "ml_dtypes",
         "hypothesis", "multiprocessing", "asyncio", "unittest", "subprocess", "tempfile", "socket"}
print(sorted(name for name in sys.modules if name.split(".")[0] in heavy))
"""
        out = run_python("import umem" + code)
        with_numpy_only = run_python("import numpy" + code)
        assert out == with_numpy_only

    def test_the_context_opens_at_first_use(self, run_python, on_gpu):
        out = run_python(
            """
import umem
umem.ndarray, umem.add, umem.Stream, umem.stream
before = "fakecuda" in open("/proc/self/maps").read()
umem.zeros(3)
print(before, "fakecuda" in open("/proc/self/maps").read())
"""
        )
        assert out.split() == ["False", str(on_gpu)]

    def test_the_first_use_imports_nothing(self, run_python):
        """A signal's handler may use umem in the middle of the first use."""
        out = run_python("""
import sys, umem
before = set(sys.modules)
assert (umem.ones(3) + 1).sum() == 6
print(sorted(set(sys.modules) - before))
""")
        assert out == "[]\n"

    def test_works_where_it_is_imported_twice(self, run_python):
        out = run_python(
            """
import sys, umem as first
a = first.ones(5)
for name in [name for name in sys.modules if name.split(".")[0] == "umem"]: del sys.modules[name]
import umem as second
b = second.ones(5)
print(first is second, a.sum() + b.sum(), type(second.asarray(a.numpy())) is second.ndarray)
del first, a
import gc; gc.collect()
print(b.sum())
"""
        )
        assert out.split() == ["False", "10.0", "True", "5.0"]


@pytest.mark.backends("fake")
class TestDrivers:
    """Which backend is used, and why, on machines with all sorts of drivers."""

    TELL = """
import umem
try: print(umem.info()["backend"], "|", umem.info()["reason"])
except Exception as error: print(type(error).__name__, "|", error)
"""

    def test_auto_uses_a_gpu_that_is_there(self, run_python):
        out = run_python(self.TELL, UMEM_BACKEND="auto")
        assert out.startswith("cuda |")

    def test_without_a_driver_auto_is_the_host_and_cuda_an_error(self, run_python):
        missing = "/nonexistent/libcuda.so.1"
        out = run_python(self.TELL, UMEM_BACKEND="auto", UMEM_CUDA_LIBRARY=missing)
        assert out.startswith("host |")
        assert missing in out
        out = run_python(self.TELL, UMEM_BACKEND="cuda", UMEM_CUDA_LIBRARY=missing)
        assert out.startswith("DriverNotFoundError |")
        assert missing in out

    def test_a_library_that_is_no_driver(self, run_python):
        import ctypes.util

        libm = ctypes.util.find_library("m")
        for backend, start in (("auto", "host |"), ("cuda", "DriverNotFoundError |")):
            out = run_python(self.TELL, UMEM_BACKEND=backend, UMEM_CUDA_LIBRARY=libm)
            assert out.startswith(start)
            assert libm in out

    @pytest.mark.parametrize("version", ["11080", "10000"])
    def test_a_driver_that_is_too_old(self, run_python, version):
        for backend, start in (("auto", "host |"), ("cuda", "DriverNotFoundError |")):
            out = run_python(self.TELL, UMEM_BACKEND=backend, FAKECU_VERSION=version)
            assert out.startswith(start)
            assert "12" in out
            assert f"{int(version) // 1000}.{int(version) % 1000 // 10}" in out

    @pytest.mark.parametrize("version", ["12000", "12040", "12080", "13000"])
    def test_drivers_that_do(self, run_python, version):
        out = run_python(
            """
import umem
i = umem.info(); a = umem.ones(1000, "f4"); a += 1
print(i["backend"], i["driver"], i["driver_version"], a.sum())
""",
            FAKECU_VERSION=version,
        )
        assert out.split() == [
            "cuda",
            version,
            f"{int(version) // 1000}.{int(version) % 1000 // 10}",
            "2000.0",
        ]

    def test_without_devices(self, run_python):
        for backend, start in (("auto", "host |"), ("cuda", "DriverNotFoundError |")):
            out = run_python(self.TELL, UMEM_BACKEND=backend, FAKECU_DEVICES="0")
            assert out.startswith(start)
            assert re.search("(?i)device|gpu", out)

    def test_a_device_without_managed_memory(self, run_python):
        for backend, start in (("auto", "host |"), ("cuda", "DriverNotFoundError |")):
            out = run_python(self.TELL, UMEM_BACKEND=backend, FAKECU_MANAGED="0")
            assert out.startswith(start)
            assert "managed" in out

    def test_an_unknown_backend(self, run_python):
        out = run_python(self.TELL, UMEM_BACKEND="nonsense")
        assert out.startswith("ValueError |")
        for part in ("nonsense", "auto", "cuda", "host"):
            assert part in out

    def test_after_an_error_the_next_use_tries_again(self, run_python):
        out = run_python(
            """
import os, umem
try: umem.zeros(3)
except umem.DriverNotFoundError: print("none")
os.environ["UMEM_BACKEND"] = "host"
print(umem.zeros(3).sum(), umem.info()["backend"])
""",
            UMEM_CUDA_LIBRARY="/nonexistent",
        )
        assert out.split() == ["none", "0.0", "host"]

    @pytest.mark.parametrize(
        "missing",
        [
            "cuMemPrefetchBatchAsync",
            "cuMemDiscardBatchAsync",
            "cuMemPrefetchBatchAsync,cuMemDiscardBatchAsync",
        ],
    )
    def test_optional_calls_that_are_missing(self, run_python, missing):
        out = run_python(
            """
import umem, numpy as np
a, b = umem.ones(1 << 18, "f4"), umem.ones(1 << 18, "f4")
umem.prefetch([a, b], "cpu"); umem.synchronize(); umem.prefetch([a, b], "cuda"); umem.synchronize()
print(a.residency().device >> 20, b.residency().device >> 20)
a.discard(); a.fill(3); a.prefetch("cpu"); umem.synchronize()
print(a.sum(), np.asarray(a)[0])
""",
            FAKECU_MISSING=missing,
        )
        assert out.split() == ["1", "1", "786432.0", "3.0"]

    def test_a_needed_call_that_is_missing(self, run_python):
        for backend, start in (("auto", "host |"), ("cuda", "DriverNotFoundError |")):
            out = run_python(self.TELL, UMEM_BACKEND=backend, FAKECU_MISSING="cuMemAllocManaged")
            assert out.startswith(start)
            assert "cuMemAllocManaged" in out


@pytest.mark.backends("host")
def test_a_machine_without_anything(run_python):
    """auto on a machine with no GPU: ordinary memory, and the whole program runs."""
    out = run_python(
        """
import os
os.environ.pop("UMEM_CUDA_LIBRARY", None)
import umem, numpy as np
a = umem.ones((3, 4), "f4"); a += 1; a.prefetch("cuda"); a.home = None
umem.prefetch([a], "cuda:0"); umem.synchronize()
with umem.stream(0): b = a @ a.T
print(umem.info()["backend"], b.sum(), a.device)
""",
        UMEM_BACKEND="auto",
        UMEM_CUDA_LIBRARY="/nonexistent/libcuda.so.1",
    )
    assert out.split() == ["host", "144.0", "cpu"]


class TestFailedImport:
    """What `import umem` says when the extension cannot be imported."""

    def test_not_built(self, run_python):
        out = run_python(
            """
import sys
sys.modules["umem._core"] = None
try: import umem
except ImportError as error: print("make build" in str(error), error.__cause__ is not None)
"""
        )
        assert out.split() == ["True", "True"]

    def test_what_the_extension_lacks(self, run_python):
        out = run_python(
            """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "umem._core": raise ImportError("numpy is too old")
sys.meta_path.insert(0, Finder())
try: import umem
except ImportError as error: print(error)
"""
        )
        assert out.strip() == "numpy is too old"
