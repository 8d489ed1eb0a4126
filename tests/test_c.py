"""Compiles and runs the C tests. Those of the CUDA backend run on the fake driver; none may say it could not test."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "ctests"
TESTS = sorted((ROOT / "tests" / "c").glob("test_um_*.c"))
SANITIZE = os.environ.get("UMEM_SANITIZE", "")


def flags() -> list[str]:
    from fake_cuda import build

    sanitize = (
        [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
        if SANITIZE
        else []
    )
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
    folders = [
        f"-I{ROOT / 'src'}",
        f"-I{ROOT / 'tests' / 'c'}",
        "-isystem",
        str(build.find_cuda_include()),
    ]
    return [
        *build.compiler(),
        "-std=c11",
        "-O1",
        "-g",
        "-pthread",
        "-DUM_HAVE_CUDA=1",
        "-DUM_DEBUG=1",
        *sanitize,
        *warnings,
        *folders,
    ]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, **variables},
    )


@pytest.fixture(scope="module")
def library() -> Path:
    """Everything below src/py as one archive; the images of the kernels are each program's own business."""
    BUILD.mkdir(parents=True, exist_ok=True)
    sources = [
        path
        for layer in ("core", "driver", "backend", "kernels")
        for path in sorted((ROOT / "src" / layer).glob("*.c"))
    ]
    objects = [BUILD / f"{path.stem}.o" for path in sources]

    def compile_one(pair):
        source, target = pair
        done = run(*flags(), "-c", str(source), "-o", str(target))
        assert done.returncode == 0, done.stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, zip(sources, objects, strict=True)))
    archive = BUILD / "libum.a"
    archive.unlink(missing_ok=True)
    done = run("ar", "rcs", str(archive), *map(str, objects))
    assert done.returncode == 0, done.stderr
    return archive


def test_there_are_tests():
    assert {path.stem for path in TESTS} >= {
        "test_um_core",
        "test_um_driver",
        "test_um_backend_cuda",
        "test_um_kernel",
    }


@pytest.mark.parametrize("source", TESTS, ids=lambda path: path.stem)
def test_passes(source, library):
    from conftest import fake_library

    program = BUILD / source.stem
    done = run(*flags(), str(source), str(library), "-ldl", "-lm", "-o", str(program))
    assert done.returncode == 0, done.stderr
    done = run(str(program), UMEM_CUDA_LIBRARY=fake_library())
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_the_fake_driver_itself():
    from fake_cuda import build

    for program in build.build_tests(ROOT / "build" / "fake_cuda", sanitize=SANITIZE):
        done = run(str(program))
        assert done.returncode == 0, (
            f"{program.name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
