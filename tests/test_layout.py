"""The layers of the sources: who may include, call and export what. Needs no GPU, but a C compiler."""

import re
import subprocess
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

#: from the lowest: a folder includes itself and those before it
LAYERS = ("driver", "backend", "core", "kernels", "py")
#: plain declarations that every layer shares, the last of data that the build makes
LEAVES = {"core/um_status.h", "core/um_location.h", "kernels/um_kernel_image.h"}
#: lists of one line an entry, which their includers give a meaning to
LISTS = {"driver/um_driver_calls.h", "kernels/um_kernel_ops.h"}

SOURCES = sorted([*SRC.rglob("*.[ch]"), *SRC.rglob("*.cu"), *SRC.rglob("*.cuh")])
HEADERS = [path for path in SOURCES if path.suffix in (".h", ".cuh")]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def name_of(path):
    return path.relative_to(SRC).as_posix()


def code(path):
    """The text of a source without comments and strings."""
    return COMMENT_OR_STRING.sub(
        lambda m: " " * 0 if m[0].startswith("/") else '""', path.read_text()
    )


def includes(path):
    """(is it ours, name) of each include; ours are named from src/."""
    for mark, name in INCLUDE.findall(path.read_text()):
        yield mark == '"', name


def test_the_sources_are_found():
    assert len(SOURCES) > 40
    assert {path.relative_to(SRC).parts[0] for path in SOURCES} == set(LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
class TestEachFile:
    def test_includes_only_lower_layers(self, path):
        own = path.relative_to(SRC).parts[0]
        for ours, name in includes(path):
            if not ours or name in LEAVES:
                continue
            assert (SRC / name).is_file(), (
                f'"{name}": ours are included by their path from src/, others with <>'
            )
            layer = name.split("/")[0]
            assert LAYERS.index(layer) <= LAYERS.index(own), f"{own} includes {name}"

    def test_python_is_for_the_glue_only(self, path):
        if path.relative_to(SRC).parts[0] == "py":
            return
        for _, name in includes(path):
            assert not re.match(r"Python\.h|numpy/|structmember|pythread", name)
        assert not re.search(r"\bPy(Object|_|Arg_|Err_|Mem_)\w*", code(path))

    def test_the_driver_is_called_by_driver_and_backend_only(self, path):
        layer = path.relative_to(SRC).parts[0]
        for _, name in includes(path):
            if layer not in ("driver", "backend"):
                assert name not in (
                    "cuda.h",
                    "cudaTypedefs.h",
                    "cuda_runtime.h",
                    "cuda_runtime_api.h",
                ), name
                assert not name.startswith("driver/"), name
        if layer not in ("driver", "backend"):
            assert not re.search(r"\bcu[A-Z]\w+\s*\(", code(path))
        assert not re.search(r"\bcuda[A-Z]\w+\s*\(", code(path)), "the CUDA runtime is not used"

    def test_libraries_are_loaded_by_the_driver_only(self, path):
        if path.relative_to(SRC).parts[0] != "driver":
            assert not re.search(r"\bdl(m?open|sym|close)\s*\(", code(path))

    def test_nothing_below_the_glue_logs(self, path):
        if path.relative_to(SRC).parts[0] != "py":
            assert not re.search(r"(?<!\w)(printf|fprintf|puts|perror|abort|exit)\s*\(", code(path))

    def test_is_one_story_of_bounded_length(self, path):
        lines = path.read_text().splitlines()
        assert len(lines) < 900
        assert name_of(path) in LISTS or max(map(len, lines), default=0) <= 160
        assert path.read_text().endswith("\n")
        assert "\t" not in path.read_text()

    def test_names_say_where_they_belong(self, path):
        assert re.fullmatch(r"um_[a-z0-9_]+\.(c|h|cu|cuh)", path.name)

    def test_headers_are_guarded_and_hold_no_state(self, path):
        if path.suffix != ".h" or name_of(path) in LISTS:
            return  # lists are included many times
        guard = path.stem.upper() + "_H"
        text = path.read_text()
        assert re.search(rf"#ifndef {guard}\n#define {guard}\n", text)
        assert not re.search(
            r"^(static )?(?!extern|typedef|struct|enum|union|#|static inline)[a-z_]\w*[ *]+\w+( = [^;]*)?;$",
            code(path),
            re.MULTILINE,
        )

    def test_no_macro_hides_a_return(self, path):
        if path.suffix in (".cu", ".cuh") or path.stem in ("um_kernel_math", "um_kernel_functions"):
            return  # macros there define whole functions
        for macro in re.findall(
            r"^\s*#\s*define\s+\w+\([^)]*\)((?:[^\n]*\\\n)*[^\n]*)", code(path), re.MULTILINE
        ):
            if (
                "case" in macro or name_of(path) == "py/um_module.c"
            ):  # tables, expanded within one function each
                continue
            assert not re.search(r"\b(return|goto)\b", macro), macro.strip()[:80]


def cuda_include():
    from fake_cuda import build

    return build.find_cuda_include()


def test_headers_stand_alone():
    """Each header compiles as a file of its own, so that the order of includes never matters."""
    from fake_cuda.build import compiler

    flags = [
        "-std=c11",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        "-Wno-unused-const-variable",
        "-x",
        "c",
    ]
    folders = [
        "-I",
        str(SRC),
        "-isystem",
        str(cuda_include()),
        "-isystem",
        sysconfig.get_path("include"),
        "-isystem",
        np.get_include(),
    ]
    macros = [
        "-DUM_HAVE_CUDA=1",
        "-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION",
        "-DNPY_TARGET_VERSION=NPY_2_0_API_VERSION",
        "-D_GNU_SOURCE",
    ]

    def check(header):
        name = name_of(header)
        text = f'#include "{name}"\n#include "{name}"\ntypedef int nothing;\n'
        if name in LISTS and name.startswith("kernels/"):
            text = f'#define UM_OP(...)\n#include "{name}"\n#define UM_OP(...)\n#include "{name}"\ntypedef int nothing;\n'
        if name in LISTS and name.startswith("driver/"):
            return None
        done = subprocess.run(
            [*compiler(), *flags, *macros, *folders, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        return None if done.returncode == 0 else f"{name}:\n{done.stderr}"

    with ThreadPoolExecutor(2) as pool:
        problems = [p for p in pool.map(check, [h for h in HEADERS if h.suffix == ".h"]) if p]
    assert not problems, "\n".join(problems)


def test_only_the_module_is_exported():
    import umem._core

    done = subprocess.run(
        ["nm", "-D", "--defined-only", umem._core.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    ours = {
        name
        for name in names
        if not name.startswith(
            (
                "_init",
                "_fini",
                "__bss_start",
                "_edata",
                "_end",
                "__asan",
                "__odr_asan",
                "__ubsan",
                "__gcov",
            )
        )
    }
    assert ours == {"PyInit__core"}


def test_the_extension_needs_no_cuda_library():
    import umem._core

    done = subprocess.run(["ldd", umem._core.__file__], capture_output=True, text=True, check=False)
    assert "libcud" not in done.stdout
    assert "nvidia" not in done.stdout


PYTHON = sorted((ROOT / "umem").glob("*.py"))


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
class TestPythonFiles:
    def test_is_one_story_of_bounded_length(self, path):
        text = path.read_text()
        assert len(text.splitlines()) < 900
        assert text.startswith(('"""', 'r"""'))

    def test_other_libraries_are_imported_where_they_are_used(self, path):
        for line in path.read_text().splitlines():
            found = re.match(
                r"(?:import|from)\s+(\w+)", line
            )  # at the beginning of a line: when the module is imported
            assert not found or found[1] not in (
                "torch",
                "cupy",
                "numba",
                "jax",
                "sklearn",
                "cuda",
                "IPython",
            )


MUTATIONS = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text())["mutation"]


def test_every_mutation_fits_the_code():
    """What tools/mutations.py takes out is there, once; and docs/mutations.md has a line for each."""
    results = (ROOT / "docs" / "mutations.md").read_text()
    for mutation in MUTATIONS:
        where = f"{mutation['file']}: {mutation['what']}"
        assert (ROOT / mutation["file"]).read_text().count(mutation["old"]) == 1, where
        assert mutation["new"] != mutation["old"], where
        line = f"| {mutation['rule']} | `{mutation['file'].removeprefix('src/')}` | {mutation['what']} | "
        assert results.count(line) == 1, where


def test_the_stub_names_what_the_module_has(umem):
    stub = (ROOT / "umem" / "_core.pyi").read_text()
    for name in dir(umem._core):
        if not name.startswith("__"):
            assert re.search(rf"\b{name}\b", stub), name
