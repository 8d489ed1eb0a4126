"""Builds the extension `umem._core`. What else there is to say of the package: pyproject.toml.

Environment switches, besides CUDA's (tools/cuda_toolkit.py):
    UMEM_DEBUG=1       no optimisation, assertions and invariant walkers (UM_DEBUG=1)
    UMEM_SANITIZE=...  for example "address,undefined" or "thread"
    UMEM_COVERAGE=1    gcov instrumentation
    UMEM_WERROR=1      warnings are errors
"""

import functools
import json
import os
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))

import cuda_toolkit  # noqa: E402
import freshness  # noqa: E402

# Paths given to the compiler are relative, as setuptools wants: it runs in the project's folder.
SRC = Path("src")
KERNEL_BUILD = Path("build", "kernels")
IMAGES_C = KERNEL_BUILD / "um_kernel_images.c"

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
]

# Threads count exactly; the paths of headers are found again from any folder.
COVERAGE = ["--coverage", "-fprofile-update=atomic", "-fprofile-abs-path"]


def switch(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def version() -> str:
    return tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]


def c_sources(with_cuda: bool) -> list[str]:
    sources = sorted(path for path in SRC.rglob("*.c"))
    if not with_cuda:
        sources = [
            path
            for path in sources
            if SRC / "driver" not in path.parents
            and not (SRC / "backend" in path.parents and "cuda" in path.name)
        ]
    return [path.as_posix() for path in sources]


def core_extension() -> Extension:
    with_cuda = cuda_toolkit.is_wanted()
    # CPython's and NumPy's headers are system headers: warnings are about umem's own code only.
    # The compiler drops a folder from -I when -isystem names it too.
    # Line numbers (-g1) are for backtraces, and for tests/test_failures.py, which tells calls of the driver apart by
    # them. They cost bytes in the file and nothing when it runs.
    flags = ["-std=c11", "-fvisibility=hidden", "-pthread", "-O3", "-g1", *WARNINGS]
    flags += ["-ffp-contract=off", "-fno-math-errno"]  # random numbers are those of the GPU
    for folder in (sysconfig.get_path("include"), numpy.get_include()):
        flags += ["-isystem", folder]
    link = ["-pthread"]
    macros = [
        ("UM_VERSION", f'"{version()}"'),
        ("UM_HAVE_CUDA", "1" if with_cuda else "0"),
        ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
    ]

    if switch("UMEM_DEBUG"):
        flags += ["-O0", "-g", "-UNDEBUG"]
        macros.append(("UM_DEBUG", "1"))
    if switch("UMEM_COVERAGE"):
        flags += ["-O0", "-g", *COVERAGE]
        link += ["--coverage", "-Wl,--exclude-libs,ALL"]  # the module exports nothing of libgcov
    sanitizers = os.environ.get("UMEM_SANITIZE", "")
    if sanitizers:
        # CPython's -fwrapv would hide signed overflow.
        flags += ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv"]
        flags += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
        link.append(f"-fsanitize={sanitizers}")
    if switch("UMEM_WERROR") and not sanitizers:  # instrumented code gets false warnings
        flags.append("-Werror")

    return Extension(
        "umem._core",
        sources=c_sources(with_cuda),
        include_dirs=[str(SRC)],
        define_macros=macros,
        extra_compile_args=flags,
        extra_link_args=link,
        libraries=["dl", "m"],
    )


class BuildCore(build_ext):
    """Compiles kernels with nvcc first, then the C files in parallel, and only what changed."""

    def finalize_options(self):
        super().finalize_options()
        if self.inplace or self.editable_mode:
            # An editable install would use a temporary folder and start from nothing each time.
            tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
            self.build_temp = os.path.join("build", f"temp.{tag}")
        self.force = True  # compile_changed() decides, file by file

    def build_extension(self, ext):
        if cuda_toolkit.is_wanted():
            try:
                self.add_kernels(ext)
            except cuda_toolkit.ToolkitError as error:
                raise CompileError(str(error)) from error
        write_compile_commands(ext)
        self.compiler.compile = functools.partial(compile_changed, self.compiler)
        super().build_extension(ext)

    def add_kernels(self, ext):
        toolkit = cuda_toolkit.find()
        if toolkit.include:
            ext.extra_compile_args += ["-isystem", toolkit.include]
        # NumPy rounds a product before it is added; where kernels do not, they say fma.
        flags = ["-O3", "-fmad=false", "-DUM_HAVE_CUDA=1", "-Wno-deprecated-gpu-targets"]
        if switch("UMEM_DEBUG"):
            flags.append("-lineinfo")
        if switch("UMEM_WERROR"):
            flags.append("-Werror=all-warnings")
        kernels = sorted((SRC / "kernels").glob("*.cu"))
        fatbins = cuda_toolkit.compile_fatbins(toolkit, kernels, SRC, KERNEL_BUILD, flags)
        cuda_toolkit.write_images_source(fatbins, IMAGES_C)
        ext.sources.append(IMAGES_C.as_posix())


def compile_changed(
    compiler,
    sources,
    output_dir=None,
    macros=None,
    include_dirs=None,
    debug=0,
    extra_preargs=None,
    extra_postargs=None,
    depends=None,
):
    """Stands in for the compile() of setuptools' compiler object; same arguments and result."""
    macros, objects, extra_postargs, pp_opts, build = compiler._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs
    )
    cc_args = compiler._get_cc_args(pp_opts, debug, extra_preargs)
    toolchain = [*compiler.compiler_so, *cc_args, *extra_postargs, sys.version, numpy.__version__]

    def compile_one(obj):
        source, suffix = build[obj]
        mark = freshness.fingerprint(toolchain, freshness.with_includes(Path(source), SRC))
        if not freshness.is_fresh(Path(obj), mark):
            compiler._compile(obj, source, suffix, cc_args, extra_postargs, pp_opts)
            freshness.set_fresh(Path(obj), mark)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, objects))  # list() raises what a thread raised
    return objects


def write_compile_commands(ext):
    """Tell clang-tidy, cppcheck and editors how each file is compiled."""
    flags = [f"-D{name}={value}" for name, value in ext.define_macros]
    flags += [f"-I{folder}" for folder in ext.include_dirs]
    flags += [flag for flag in ext.extra_compile_args if flag != "-Werror"]
    commands = [
        {
            "directory": str(HERE),
            "file": str(HERE / source),
            "arguments": ["cc", *flags, "-c", source],
        }
        for source in ext.sources
        if source != IMAGES_C.as_posix()
    ]
    text = json.dumps(commands, indent=1) + "\n"
    freshness.write_if_changed(Path("build", "compile_commands.json"), text)


setup(
    license="MIT",
    ext_modules=[core_extension()],
    cmdclass={"build_ext": BuildCore},
)
