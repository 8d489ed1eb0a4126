"""Builds the fake CUDA driver. Needs a C compiler and the CUDA toolkit's cuda.h; no GPU, no nvcc.

    python tests/fake_cuda/build.py [-o DIR] [--driver-11] [--sanitize KINDS] [--test]
    python tests/fake_cuda/build.py --compare libcuda.so.1      # on a machine with a GPU

From Python: ``build(out_dir)`` returns the library's path and compiles only what has changed since.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

FLAGS = [
    *("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # Host kernels stand in for device code whose roundings are spelled out.
    "-ffp-contract=off",
]
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
]


class BuildError(RuntimeError):
    """The library could not be built; the message holds what the compiler said."""


def _cuda_include_candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")
    # pip packages: in site-packages, or in the folder of its own that `make` puts them in
    for site in dict.fromkeys(
        [*sys.path, *sysconfig.get_paths().values(), str(Path(sys.prefix) / "cuda")]
    ):
        if site:
            yield from sorted(Path(site).glob("nvidia/cu[0-9]*/include"), reverse=True)
            yield Path(site) / "nvidia" / "cuda_runtime" / "include"
    yield Path("/usr/include")


def find_cuda_include() -> Path:
    """The directory that holds cuda.h and cudaTypedefs.h."""
    tried = []
    for directory in _cuda_include_candidates():
        if (directory / "cuda.h").is_file() and (directory / "cudaTypedefs.h").is_file():
            return directory
        tried.append(str(directory))
    raise BuildError("cuda.h not found; set CUDA_HOME. Tried: " + ", ".join(tried))


def compiler() -> list[str]:
    """$CC, or the first of gcc, cc and clang that is installed, as the start of a command."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("gcc", "cc", "clang"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C compiler found; set CC")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr:
        sys.stderr.write(done.stderr)


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes the folder, and has it to itself among the processes that ask: one builds, the others find it done."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def _inputs() -> list[Path]:
    return sorted([*HERE.glob("*.[ch]"), *(ROOT / "src").rglob("*.h")])


def _fingerprint(command: list[str], inputs: list[Path]) -> str:
    digest = hashlib.sha256(shlex.join(command).encode())
    for path in inputs:
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sanitizer_flags(sanitize: str) -> list[str]:
    if not sanitize:
        return []
    return [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]


def build(
    out_dir: str | os.PathLike[str],
    *,
    driver_11: bool = False,
    sanitize: str | None = None,
    werror: bool = False,
) -> Path:
    """Compiles the library into ``out_dir`` unless it is there and up to date.

    Safe to call from several processes at once.

    driver_11  leave out cuGetProcAddress_v2, which drivers older than CUDA 12 do not export
    sanitize   value for -fsanitize=, e.g. "address,undefined"; default: $UMEM_SANITIZE
    """
    if sanitize is None:
        sanitize = os.environ.get("UMEM_SANITIZE", "")
    out = Path(out_dir)
    library = out / ("libfakecuda_11.so" if driver_11 else "libfakecuda.so")
    flags = [*FLAGS, *WARNINGS]
    if werror:
        flags.append("-Werror")
    if driver_11:
        flags.append("-DFAKECU_DRIVER_11")
    flags += _sanitizer_flags(sanitize)
    command = [
        *compiler(),
        *flags,
        f"-I{ROOT / 'src'}",
        f"-I{HERE}",
        "-isystem",
        str(find_cuda_include()),
    ]

    with locked(out):
        stamp = library.with_suffix(".stamp")
        fingerprint = _fingerprint(command, _inputs())
        if not (library.exists() and stamp.exists() and stamp.read_text() == fingerprint):
            link_options = [] if "address" in sanitize or "thread" in sanitize else ["-Wl,-z,defs"]
            _compile_library(command, library, link_options)
            stamp.write_text(fingerprint)
    return library


def _compile_library(command: list[str], library: Path, link_options: list[str]) -> None:
    sources = sorted(HERE.glob("fake_*.c"))
    with tempfile.TemporaryDirectory(dir=library.parent) as work, ThreadPoolExecutor() as pool:
        objects = [Path(work) / f"{source.stem}.o" for source in sources]
        jobs = [
            pool.submit(_run, [*command, "-c", str(s), "-o", str(o)])
            for s, o in zip(sources, objects, strict=True)
        ]
        for job in jobs:
            job.result()
        fresh = Path(work) / library.name
        _run(
            [
                *command,
                "-shared",
                f"-Wl,-soname,{library.name}",
                *link_options,
                *map(str, objects),
                "-lm",
                "-ldl",
                "-o",
                str(fresh),
            ]
        )
        os.replace(fresh, library)


def _build_program(
    source: Path, out_dir: str | os.PathLike[str], libraries: list[str], sanitize: str, werror: bool
) -> Path:
    program = Path(out_dir) / source.stem
    flags = [*FLAGS, *WARNINGS, *_sanitizer_flags(sanitize)]
    if werror:
        flags.append("-Werror")
    includes = [f"-I{ROOT / 'src'}", f"-I{HERE}", "-isystem", str(find_cuda_include())]
    with locked(out_dir):
        _run([*compiler(), *flags, *includes, str(source), *libraries, "-ldl", "-o", str(program)])
    return program


def build_tests(
    out_dir: str | os.PathLike[str], *, sanitize: str | None = None, werror: bool = False
) -> list[Path]:
    """Compiles tests/c/test_fake_cuda*.c against the library; the programs need nothing set."""
    if sanitize is None:
        sanitize = os.environ.get("UMEM_SANITIZE", "")
    library = build(out_dir, sanitize=sanitize, werror=werror)
    libraries = [str(library), "-Xlinker", "-rpath", "-Xlinker", str(library.parent.resolve())]
    return [
        _build_program(source, out_dir, libraries, sanitize, werror)
        for source in sorted((ROOT / "tests" / "c").glob("test_fake_cuda*.c"))
    ]


def compare(out_dir: str | os.PathLike[str], driver: str) -> int:
    """Asks a real driver and the fake the same questions and prints the answers that differ."""
    program = _build_program(HERE / "observe.c", out_dir, [], "", False)

    def ask(library: str) -> list[str]:
        command = [str(program.resolve()), library]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=300)
        return [*done.stdout.splitlines(), f"exit status {done.returncode}"]

    real, fake = ask(driver), ask(str(build(out_dir, sanitize="")))
    lines = list(difflib.unified_diff(real, fake, driver, "fake", lineterm="", n=0))
    print("\n".join(lines) if lines else f"no difference in {len(real)} answers")
    return 1 if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the fake CUDA driver of the tests.")
    parser.add_argument(
        "-o", "--out", default=str(ROOT / "build" / "fake_cuda"), help="output directory"
    )
    parser.add_argument("--driver-11", action="store_true", help="leave out cuGetProcAddress_v2")
    parser.add_argument("--sanitize", help="value for -fsanitize= (default: $UMEM_SANITIZE)")
    parser.add_argument("--werror", action="store_true", help="warnings are errors")
    parser.add_argument(
        "--test", action="store_true", help="build and run tests/c/test_fake_cuda*.c too"
    )
    parser.add_argument("--compare", metavar="LIBRARY", help="ask a real driver the same questions")
    options = parser.parse_args()
    try:
        if options.compare:
            return compare(options.out, options.compare)
        if options.test:
            programs = build_tests(options.out, sanitize=options.sanitize, werror=options.werror)
            codes = [subprocess.run([str(p)], check=False).returncode for p in programs]
            return int(any(codes))
        print(
            build(
                options.out,
                driver_11=options.driver_11,
                sanitize=options.sanitize,
                werror=options.werror,
            )
        )
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
