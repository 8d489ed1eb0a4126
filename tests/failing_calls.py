"""Makes calls of umem's extension into CPython, NumPy and libc fail; see failing_calls.c."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "failing_calls.c"


@functools.cache
def library() -> ctypes.PyDLL:
    """Built at first use. It keeps the GIL: a wrapper must see the thread that was armed."""
    from fake_cuda.build import compiler

    folders = [sysconfig.get_path("include"), np.get_include()]
    command = [
        *compiler(),
        "-std=c11",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
    ]
    command += ["-Wno-pedantic", *(f"-isystem{folder}" for folder in folders)]
    key = hashlib.sha256(repr(command).encode() + SOURCE.read_bytes()).hexdigest()[:20]
    target = HERE.parent / "build" / "failing_calls" / f"libfailing_calls-{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [*command, str(SOURCE), "-ldl", "-o", str(partial)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        partial.replace(target)
    loaded = ctypes.PyDLL(str(target))
    loaded.failing_calls_hook.restype = ctypes.c_char_p
    loaded.failing_calls_hook.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    loaded.failing_calls_disarm.restype = ctypes.c_char_p
    loaded.failing_calls_arm.argtypes = [ctypes.c_long, ctypes.c_int]
    return loaded


@functools.cache
def hook(path: str) -> None:
    """Once per extension: the wrappers stay, and do nothing while no thread is armed."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype = ctypes.c_void_p
    address.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = address(np._core._multiarray_umath._ARRAY_API, None)
    wrong = library().failing_calls_hook(path.encode(), table)
    # What CPython's macros call differs between its versions; the lists are complete for the one that CI runs.
    if (
        wrong is not None
        and sys.version_info[:2] != (3, 11)
        and wrong.lstrip(b"_").startswith(b"Py")
    ):
        wrong = None
    assert wrong is None, (
        f"neither to fail nor known as infallible in {SOURCE.name}: {wrong.decode()}"
    )


class FailingCalls:
    """The nth call that the extension makes on this thread fails, and with `onwards` all after it."""

    def __init__(self, core) -> None:
        hook(core.__file__)
        self.failed: str | None = None
        self._library = library()

    def run(self, nth: int, function, *, onwards: bool = False):
        """What the function returns or raises; `failed` is then the first call that failed, or None."""
        self._library.failing_calls_arm(nth, onwards)
        try:
            return function()
        finally:
            name = self._library.failing_calls_disarm()
            self.failed = name.decode() if name is not None else None
