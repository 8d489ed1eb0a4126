"""The C tests: each tests/c/test_*.c is compiled against the sources and run, with the fake driver in place of a GPU."""

import hashlib
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import backends

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
BUILD = ROOT / "build" / "ctests"

PROGRAMS = sorted((ROOT / "tests" / "c").glob("test_um_*.c"))
LAYERS = ("driver", "backend", "core", "kernels")

SANITIZE = os.environ.get("UMEM_SANITIZE", "")
#: what the programs run under: nothing, or valgrind with its options (`make check-valgrind`)
VALGRIND = shlex.split(os.environ.get("UMEM_VALGRIND", ""))
COVERAGE = os.environ.get("UMEM_COVERAGE", "0") not in ("", "0")
FLAGS = [
    "-std=c11",
    "-g",
    "-O1",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-DUM_HAVE_CUDA=1",
    "-DUM_DEBUG=1",
]
if SANITIZE:
    FLAGS += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
if COVERAGE:
    # As setup.py does, so that a source has the same branches in both builds; assertions are none of them.
    FLAGS += [
        "-O0",
        "-DNDEBUG",
        "-DUM_COVERAGE=1",
        "--coverage",
        "-fprofile-update=atomic",
        "-fprofile-abs-path",
    ]

TIMEOUT = 290 if SANITIZE or COVERAGE or VALGRIND else 110  # seconds


def include_flags():
    from fake_cuda import build

    return [
        "-I",
        str(SRC),
        "-I",
        str(ROOT / "tests" / "c"),
        "-isystem",
        str(build.find_cuda_include()),
    ]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def objects():
    """Every source of the layers below Python, as object files: those of earlier runs where nothing has changed."""
    from fake_cuda.build import compiler, locked

    command = [*compiler(), *FLAGS, *include_flags()]
    digest = hashlib.sha256(repr(command).encode())
    for path in sorted([*SRC.rglob("*.h"), *(ROOT / "tests").rglob("*.h")]):
        digest.update(path.read_bytes())
    common = digest.hexdigest()
    sources = [path for layer in LAYERS for path in sorted((SRC / layer).glob("*.c"))]

    def build(source):
        key = hashlib.sha256(common.encode() + source.read_bytes()).hexdigest()[:20]
        target = BUILD / f"{source.stem}-{key}.o"
        if not target.exists():
            partial = target.with_suffix(".partial.o")
            run([*command, "-c", source, "-o", partial])
            partial.replace(target)
        return source, target

    with locked(BUILD), ThreadPoolExecutor(2) as pool:
        return dict(pool.map(build, sources))


#: in place of the kernels that nvcc compiles; a program with images of its own defines them
NO_IMAGES = """
#include "kernels/um_kernel_image.h"
__attribute__((weak)) const um_kernel_image um_kernel_images[] = {{"none", NULL, 0}};
__attribute__((weak)) const size_t um_kernel_image_count = 0;
"""


def test_there_is_a_program_for_each_layer():
    names = " ".join(path.name for path in PROGRAMS)
    for part in ("driver", "backend_cuda", "backend_host", "core", "kernel"):
        assert part in names


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program, objects, tmp_path):
    from fake_cuda.build import compiler

    library = backends.fake_library()
    executable = tmp_path / program.stem
    images = tmp_path / "no_images.c"
    images.write_text(NO_IMAGES)
    run(
        [
            *compiler(),
            *FLAGS,
            *include_flags(),
            program,
            images,
            *objects.values(),
            "-ldl",
            "-lm",
            "-o",
            executable,
        ]
    )
    done = subprocess.run(
        [*VALGRIND, executable],
        env={**os.environ, "UMEM_CUDA_LIBRARY": library, "UMEM_BACKEND": "cuda"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, (
        f"exit {done.returncode} (77 is a skip, and nothing is to be skipped here)\n{done.stdout}{done.stderr}"
    )
    assert "ok" in done.stdout


def test_the_fake_driver_itself():
    from fake_cuda import build

    programs = build.build_tests(ROOT / "build" / "fake_cuda")
    assert programs
    for program in programs:
        done = subprocess.run(
            [*VALGRIND, program],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
