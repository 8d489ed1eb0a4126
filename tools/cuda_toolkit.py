"""Find nvcc, choose GPU architectures and compile the kernels. Used by setup.py.

Run as a script it answers one question for the Makefile, the tests and people:

    python tools/cuda_toolkit.py nvcc           path of the nvcc that a build would use
    python tools/cuda_toolkit.py include        folder with cuda.h (empty: the compiler finds it)
    python tools/cuda_toolkit.py requirements   pip packages to install first, if nvcc is missing
    python tools/cuda_toolkit.py archs          GPU architectures a build would compile for

Environment:
    UMEM_CUDA=0        build without CUDA
    UMEM_NVCC          the nvcc to use; nothing else is tried
    UMEM_CUDA_ARCHS    for example "90" or "80;90+PTX"; "native" for the GPUs present; "portable"
                       for a set that runs well on every supported GPU; "ptx" for code that the
                       driver compiles for any of them. Default: native, or else portable.
nvcc reads more itself, such as NVCC_CCBIN (host compiler) and NVCC_APPEND_FLAGS.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import site
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import freshness

# CUmemLocation with host and NUMA kinds, which the driver table uses, came with 12.2.
OLDEST_CUDA = (12, 2)

# 13.0 and not newer: what a later nvcc compiles may need a driver newer than 580.
# cccl is there for <nv/target>, which cuda_fp16.h and cuda_bf16.h include.
PIP_REQUIREMENTS = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
)
PIP_MACHINES = ("x86_64", "aarch64")  # the pip packages exist for Linux on these
PIP_ROOT = Path("nvidia", "cu13")  # shared by the packages, below site-packages

# Machine code for these where nvcc knows them. PTX of the oldest lets the driver compile for every
# chip that has no machine code here, later ones included.
PORTABLE_SASS = ("75", "80", "86", "89", "90", "100", "120")
PORTABLE_PTX = "75"

HOW_TO_GET_NVCC = (
    f"Install the CUDA toolkit ({OLDEST_CUDA[0]}.{OLDEST_CUDA[1]} or later) or point UMEM_NVCC or "
    "CUDA_HOME at it; or run pip without --no-build-isolation, which fetches nvcc as pip packages; "
    "or run\n    pip install " + " ".join(f"'{name}'" for name in PIP_REQUIREMENTS) + "\n"
    "or set UMEM_CUDA=0 to build without GPU support."
)


class ToolkitError(Exception):
    """No usable toolkit, an impossible architecture, or kernels that do not compile."""


@dataclass(frozen=True)
class Toolkit:
    nvcc: str
    version: tuple[int, int]
    include: str  # folder with cuda.h; "" if it is on the compiler's default path


def is_wanted() -> bool:
    return os.environ.get("UMEM_CUDA", "1") != "0"


# --- finding nvcc


def _pip_roots() -> list[Path]:
    # `make` puts the packages into .venv/cuda, apart from site-packages, where a CUDA build of
    # PyTorch pins other versions of some of them.
    folders = [*sys.path, *site.getsitepackages(), os.path.join(sys.prefix, "cuda")]
    roots = dict.fromkeys(Path(folder).absolute() / PIP_ROOT for folder in folders if folder)
    return [root for root in roots if (root / "bin" / "nvcc").is_file()]


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable], "bin", "nvcc")
    on_path = shutil.which("nvcc")
    if on_path:
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    for root in _pip_roots():
        _restore_exec_bits(root)
        yield root / "bin" / "nvcc"


def _restore_exec_bits(root: Path) -> None:
    """Make the tools of a pip toolkit executable: not every installer keeps the wheel's modes."""
    for tool in [*(root / "bin").iterdir(), *(root / "nvvm" / "bin").glob("*")]:
        if tool.is_file() and not os.access(tool, os.X_OK):
            try:
                tool.chmod(tool.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
            except OSError:
                pass  # someone else's file: running it says what is wrong


def _run(command: Sequence[str], timeout: float | None = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def _probe(nvcc: Path) -> Toolkit:
    """Check that nvcc runs, is new enough and comes with cuda.h; raise ToolkitError if not."""
    if not nvcc.is_file():
        raise ToolkitError("no such file")
    try:
        about = _run([str(nvcc), "--version"])
        # A dry run names the include folders, even if nvcc is a wrapper script or a link.
        dry = _run([str(nvcc), "--dryrun", "--fatbin", "-x", "cu", "-o", os.devnull, os.devnull])
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolkitError(str(error)) from error
    found = re.search(r"release (\d+)\.(\d+)", about.stdout)
    if about.returncode or not found:
        raise ToolkitError(f"`nvcc --version` failed: {about.stdout.strip()}")
    version = (int(found[1]), int(found[2]))
    if version < OLDEST_CUDA:
        raise ToolkitError(
            f"{found[0]} is older than the CUDA {OLDEST_CUDA[0]}.{OLDEST_CUDA[1]} that umem needs"
        )
    if dry.returncode:
        raise ToolkitError(f"a dry run failed: {dry.stdout.strip()}")

    folders = [
        flag[2:]
        for line in re.findall(r"^#\$ INCLUDES=(.*)$", dry.stdout, re.MULTILINE)
        for flag in shlex.split(line)
        if flag.startswith("-I")
    ]
    folders.append(str(nvcc.resolve().parent.parent / "include"))
    for folder in folders:
        if Path(folder, "cuda.h").is_file():
            return Toolkit(str(nvcc), version, os.path.normpath(folder))
    if Path("/usr/include/cuda.h").is_file():
        return Toolkit(str(nvcc), version, "")
    raise ToolkitError(f"no cuda.h in {', '.join(folders)}")


def find() -> Toolkit:
    """The first toolkit that works. Raises ToolkitError saying what was tried."""
    chosen = os.environ.get("UMEM_NVCC")
    if chosen:
        path = shutil.which(chosen) or chosen
        try:
            return _probe(Path(path).absolute())
        except ToolkitError as error:
            raise ToolkitError(f"UMEM_NVCC={chosen} cannot be used: {error}") from error
    tried: dict[str, str] = {}
    for nvcc in _candidates():
        if str(nvcc) in tried:
            continue
        try:
            return _probe(nvcc.absolute())
        except ToolkitError as error:
            tried[str(nvcc)] = str(error)
    report = "".join(f"\n    {path}: {why}" for path, why in tried.items())
    raise ToolkitError(f"no usable nvcc was found; tried{report}\n{HOW_TO_GET_NVCC}")


def missing_requirements() -> list[str]:
    """The pip packages to install before a build, none if it already has what it needs."""
    if not is_wanted():
        return []
    if sys.platform != "linux" or platform.machine() not in PIP_MACHINES:
        return []  # find() explains later
    if os.environ.get("UMEM_NVCC"):
        return []  # the user's choice: use it or fail with it
    try:
        find()
    except ToolkitError:
        return list(PIP_REQUIREMENTS)
    return []


# --- GPU architectures


def _supported(toolkit: Toolkit) -> list[str]:
    listing = _run([toolkit.nvcc, "--list-gpu-code"])
    codes = re.findall(r"^sm_(\w+)$", listing.stdout, re.MULTILINE)
    if listing.returncode or not codes:
        raise ToolkitError(f"`{toolkit.nvcc} --list-gpu-code` failed: {listing.stdout.strip()}")
    return sorted(set(codes), key=_arch_number)


def _arch_number(arch: str) -> int:
    return int(arch.rstrip("af"))


def _present() -> list[str]:
    """Architectures of the GPUs in this machine."""
    try:
        answer = _run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    except (OSError, subprocess.SubprocessError):
        return []
    if answer.returncode:
        return []
    return sorted({a + b for a, b in re.findall(r"^(\d+)\.(\d)\s*$", answer.stdout, re.MULTILINE)})


def _native(supported: Sequence[str], present: Sequence[str]) -> list[str]:
    oldest, newest = supported[0], supported[-1]
    chosen = []
    for arch in present:
        if arch in supported:
            chosen.append(f"{arch}+PTX")  # PTX: a later GPU in this machine still works
        elif _arch_number(arch) > _arch_number(newest):
            chosen.append(f"{newest}+PTX")
        elif _arch_number(arch) < _arch_number(oldest):
            raise ToolkitError(
                f"this machine's GPU has compute capability {arch[:-1]}.{arch[-1]}, older than "
                f"anything this nvcc compiles for (sm_{oldest} and later). Point UMEM_NVCC at an "
                "older CUDA toolkit, or set UMEM_CUDA=0 to build without GPU support."
            )
        else:
            older = [a for a in supported if _arch_number(a) < _arch_number(arch)]
            chosen.append(f"{older[-1]}+PTX")
    return chosen


def choose_archs(toolkit: Toolkit) -> list[str]:
    """What to compile for: "90" machine code, "75-PTX" PTX alone, "90+PTX" both."""
    supported = _supported(toolkit)
    asked = os.environ.get("UMEM_CUDA_ARCHS", "").strip()
    present = _present() if asked in ("", "native") else []
    if present:
        return _native(supported, present)
    if asked == "native":
        raise ToolkitError("UMEM_CUDA_ARCHS=native, but nvidia-smi reports no GPU")
    if asked in ("", "portable", "ptx"):
        ptx = PORTABLE_PTX if PORTABLE_PTX in supported else supported[0]
        sass = [] if asked == "ptx" else [arch for arch in PORTABLE_SASS if arch in supported]
        return [*sass, f"{ptx}-PTX"]

    chosen = []
    for word in re.split(r"[;,\s]+", asked):
        match = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)([af]?)([+-]PTX)?", word, re.IGNORECASE)
        if not match:
            raise ToolkitError(
                f"UMEM_CUDA_ARCHS: cannot read {word!r}; write for example '90', '80;90+PTX', "
                "'native', 'portable' or 'ptx'"
            )
        arch = match[1] + match[2] + match[3].lower()
        if match[1] + match[2] not in supported:
            raise ToolkitError(
                f"UMEM_CUDA_ARCHS: {toolkit.nvcc} (CUDA {toolkit.version[0]}.{toolkit.version[1]}) "
                f"cannot compile for {arch}; it knows {', '.join(supported)}"
            )
        chosen.append(arch + (match[4] or "").upper())
    return chosen


def gencode_flags(archs: Sequence[str]) -> list[str]:
    """nvcc flags for choose_archs()' answer."""
    codes: dict[str, set[str]] = {}
    for word in archs:
        arch, sign, _ = word.partition("+") if "+" in word else word.partition("-")
        wanted = codes.setdefault(arch, set())
        if sign != "-":
            wanted.add(f"sm_{arch}")
        if sign:
            wanted.add(f"compute_{arch}")
    return [
        f"-gencode=arch=compute_{arch},code=[{','.join(sorted(codes[arch], reverse=True))}]"
        for arch in sorted(codes, key=_arch_number)
    ]


# --- compiling


def compile_fatbins(
    toolkit: Toolkit, sources: Sequence[Path], root: Path, out: Path, flags: Sequence[str]
) -> list[Path]:
    """Compile each .cu to out/STEM.fatbin, if it is not there already; root is src/."""
    if not sources:
        return []
    archs = choose_archs(toolkit)
    print(f"umem: kernels for {', '.join(archs)} with {toolkit.nvcc}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    command = [
        toolkit.nvcc,
        "--fatbin",
        "-std=c++17",
        "-I",
        str(root),
        *gencode_flags(archs),
        *flags,
    ]
    about = _run([toolkit.nvcc, "--version"]).stdout
    nvcc_environment = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NVCC_")]

    def compile_one(source: Path) -> Path:
        target = out / f"{source.stem}.fatbin"
        mark = freshness.fingerprint(
            [*command[1:], about, *nvcc_environment], freshness.with_includes(source, root)
        )
        if freshness.is_fresh(target, mark):
            return target
        # nvcc writes beside the target, so that an interrupted build leaves nothing half written.
        partial = target.with_suffix(".partial")
        threads = max(1, cores // len(sources))
        full = [*command, f"--threads={threads}", "-o", str(partial), str(source)]
        print(shlex.join(full) + "\n", end="", flush=True)  # one write: others print too
        result = _run(full, timeout=None)
        if result.stdout.strip():
            print(result.stdout, flush=True)
        if result.returncode:
            raise ToolkitError(
                f"nvcc could not compile {source} (exit status {result.returncode}):\n"
                f"{result.stdout.strip()}\n"
                "If it rejects the host compiler, name another with NVCC_CCBIN; UMEM_CUDA=0 builds "
                "without GPU support."
            )
        partial.replace(target)
        freshness.set_fresh(target, mark)
        return target

    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(compile_one, sources))


_IMAGES_C = """\
/* Generated by tools/cuda_toolkit.py: the compiled kernels as data. */
#include "kernels/um_kernel_image.h"

{images}
const um_kernel_image um_kernel_images[] = {{
{entries}    {{0, 0, 0}}, /* ISO C has no empty arrays */
}};
const size_t um_kernel_image_count = {count};
"""

# The label is this file's own; the NUL lets PTX be passed to the driver as text.
_IMAGE_C = """\
/* {digest} */
extern const unsigned char um_image_{name}[] __attribute__((visibility("hidden")));
__asm__(".pushsection .rodata\\n"
        ".balign 8\\n"
        "um_image_{name}:\\n"
        ".incbin \\"{path}\\"\\n"
        ".byte 0\\n"
        ".popsection\\n");
"""


def write_images_source(fatbins: Sequence[Path], path: Path) -> None:
    """Write the C file that embeds the fatbins, for src/kernels/um_kernel_image.h.

    It is compiled in the folder that the fatbins' paths are relative to. The digest in it makes the
    file change, and so be recompiled, whenever a fatbin does.
    """
    images = entries = ""
    for fatbin in fatbins:
        name = re.sub(r"\W", "_", fatbin.stem)
        digest = freshness.fingerprint([], [fatbin])
        images += _IMAGE_C.format(name=name, path=fatbin.as_posix(), digest=digest)
        entries += f'    {{"{fatbin.stem}", um_image_{name}, {fatbin.stat().st_size}}},\n'
    text = _IMAGES_C.format(images=images, entries=entries, count=len(fatbins))
    freshness.write_if_changed(path, text)


def main(arguments: Sequence[str]) -> int:
    answers = {
        "nvcc": lambda: find().nvcc,
        "include": lambda: find().include,
        "requirements": lambda: "\n".join(missing_requirements()),
        "archs": lambda: ";".join(choose_archs(find())),
    }
    if len(arguments) != 1 or arguments[0] not in answers:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(answers[arguments[0]]())
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
