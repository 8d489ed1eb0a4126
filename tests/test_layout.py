"""The layers stay layers: who includes whom, where Python and the driver may appear, what the extension exports."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"

#: each layer includes itself and the layers before it
ORDER = ("driver", "backend", "core", "kernels", "py")
#: small headers without functions of their own layer, which any layer may include
LEAVES = {"core/um_status.h", "core/um_location.h", "kernels/um_kernel_image.h"}

SOURCES = sorted(path for path in SRC.rglob("*") if path.suffix in (".c", ".h", ".cu", ".cuh"))
HEADERS = [path for path in SOURCES if path.suffix == ".h"]
#: lists of lines for a macro, which have no meaning on their own
LISTS = {"driver/um_driver_calls.h", "kernels/um_kernel_ops.h"}


def name(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def test_there_is_something_to_check():
    assert len(SOURCES) > 40
    assert {path.parent.name for path in SOURCES} == set(ORDER)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_includes_only_its_own_layer_and_lower_ones(path):
    mine = ORDER.index(path.parent.name)
    for included in includes(path):
        if "/" not in included or included in LEAVES:
            continue
        layer = included.split("/")[0]
        if layer in ORDER:
            assert ORDER.index(layer) <= mine, f"{name(path)} includes {included}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_python_and_the_driver_stay_where_they_belong(path):
    found = includes(path)
    if path.parent.name != "py":
        assert not [one for one in found if one.startswith(("Python", "numpy/", "structmember"))]
    if path.parent.name not in ("driver", "backend"):
        assert "cuda.h" not in found
        assert "driver/um_driver.h" not in found


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_tells_one_story(path):
    assert len(path.read_text().splitlines()) <= 900


@pytest.mark.parametrize("path", [path for path in HEADERS if name(path) not in LISTS], ids=name)
def test_header_stands_alone(path, tmp_path):
    from fake_cuda import build

    source = tmp_path / "alone.c"
    source.write_text(f'#include "{name(path)}"\n')
    folders = [sysconfig.get_path("include"), np.get_include(), str(build.find_cuda_include())]
    system = [flag for folder in folders for flag in ("-isystem", folder)]
    numpy_api = [
        "-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION",
        "-DNPY_TARGET_VERSION=NPY_2_0_API_VERSION",
    ]
    command = [*build.compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    command += ["-DUM_HAVE_CUDA=1", *numpy_api, f"-I{SRC}", *system, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF symbol table")
def test_exports_only_the_module():
    import umem._core

    done = subprocess.run(
        ["nm", "-D", "--defined-only", umem._core.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    symbols = {
        line.split()[-1] for line in done.stdout.splitlines() if line.split()[-2] in "TDBRGS"
    }
    # A build for a sanitizer or for coverage adds its own.
    ours = {one for one in symbols if not one.startswith(("__", "_init", "_fini"))}
    assert ours == {"PyInit__core"}
