"""Files: NumPy's .npy format and raw bytes, read straight into managed memory, written without moving a page."""

from __future__ import annotations

import io
import os
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib import format as npy

from umem import _core, _layout
from umem._core import ndarray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike

    File = str | os.PathLike[str] | IO[bytes]

_CHUNK = 16 << 20  # bytes on the way to a file
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # how a .npz file begins; the second: an empty one


def _opened(file: File, mode: str) -> AbstractContextManager[Any]:
    """The file as a context manager: closed at the end only if it was opened here."""
    if hasattr(file, "read") or hasattr(file, "write"):
        return nullcontext(file)
    return open(os.fspath(file), mode)


# --- save ----------------------------------------------------------------------------------------------


def save(file: File, arr: Any) -> None:
    """Write an array to a .npy file, as np.save does: ".npy" is appended to a name that lacks it.

    A umem array is written through copies of 16 MiB, so that what is on a GPU stays there.
    """
    if not isinstance(arr, ndarray):
        np.save(file, arr, allow_pickle=False)
        return
    header = _header(arr)
    if header is None:  # only NumPy can write it
        np.save(file, arr.read(), allow_pickle=False)
        return
    if not hasattr(file, "write"):
        name = os.fspath(file)
        file = name if name.endswith(".npy") else name + ".npy"
    with _opened(file, "wb") as stream:
        stream.write(header)
        for chunk in _chunks(arr):
            stream.write(chunk)


def _header(array: ndarray) -> bytes | None:
    """The header of the oldest version of the format that can describe the array."""
    fields = {
        "descr": npy.dtype_to_descr(array.dtype),
        "fortran_order": array.flags.f_contiguous and not array.flags.c_contiguous,
        "shape": array.shape,
    }
    for write in (npy.write_array_header_1_0, npy.write_array_header_2_0):
        buffer = io.BytesIO()
        try:
            write(buffer, fields)
        except ValueError:  # too long, or names beyond Latin-1
            continue
        return buffer.getvalue()
    return None


def _chunks(array: ndarray) -> Iterator[memoryview | bytes]:
    """All bytes in the order in which the format has them."""
    flat = _layout.flat_bytes(array)
    if flat is None:
        yield array.read().tobytes()
        return
    for start in range(0, flat.size, _CHUNK):
        yield memoryview(flat[start : start + _CHUNK].read())


# --- load -----------------------------------------------------------------------------------------------


def load(file: File, *, device: object = None, home: object = None) -> Any:
    """Read a .npy file into managed memory, as np.load; a .npz file gives a dict of arrays.

    Files of pickled Python objects are refused with a ValueError.
    """
    with _opened(file, "rb") as stream:
        start = stream.tell()
        magic = stream.read(len(npy.MAGIC_PREFIX))
        is_npy = magic == npy.MAGIC_PREFIX
        if magic and not is_npy and not magic.startswith(_ZIP):
            # NumPy takes it for a pickle, and recommends an argument that is not here.
            raise ValueError("this is neither a .npy nor a .npz file; umem.load reads no pickles")
        stream.seek(start)
        described = _read_header(stream) if is_npy else None
        if described is not None:
            return _read_array(stream, *described, device, home)
        stream.seek(start)
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return _layout.copy_of(loaded, device=device, home=home)
        with loaded:
            return {
                name: _layout.copy_of(loaded[name], device=device, home=home)
                for name in loaded.files
            }


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]] | None:
    """(shape, fortran_order, dtype); None for what only NumPy can read."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    read = readers.get(npy.read_magic(stream))
    described = None if read is None else read(stream)
    return None if described is None or described[2].hasobject else described


def _read_array(
    stream: IO[bytes],
    shape: tuple[int, ...],
    fortran_order: bool,
    dtype: np.dtype[Any],
    device: object,
    home: object,
) -> ndarray:
    order = "F" if fortran_order else "C"
    result = _core.empty(shape, dtype, order, device=device, home=home)
    flat = _layout.flat_bytes(result)
    if flat is not None:
        found = _fill(stream, flat)
        if found < flat.size:
            raise ValueError(f"the file ends after {found} of {flat.size} bytes of array data")
    return result


def _fill(stream: IO[bytes], flat: ndarray) -> int:
    """Reads until the array of bytes is full or the file ends; returns how many were read."""
    done = 0
    with memoryview(cast("Any", flat)) as memory:
        while done < len(memory):
            if hasattr(stream, "readinto"):
                count = stream.readinto(memory[done:])
            else:
                piece = stream.read(min(len(memory) - done, _CHUNK))
                count = len(piece)
                memory[done : done + count] = piece
            if not count:
                break
            done += count
    return done


# --- raw bytes -------------------------------------------------------------------------------------------


def fromfile(
    file: File,
    dtype: DTypeLike = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """Read an array from a binary file (or, with sep, a text file), as np.fromfile.

    Binary data is read straight into managed memory. `count` items, or all up to the end of the file; `offset`
    bytes after the file's position are skipped.
    """
    kind = np.dtype(dtype)
    if sep or kind.hasobject or kind.itemsize == 0:
        host = np.fromfile(file, kind, count, sep, offset)
        return _layout.copy_of(host, device=device, home=home)
    with _opened(file, "rb") as stream:
        stream.fileno()  # like NumPy, real files only
        if offset:
            stream.seek(offset, os.SEEK_CUR)
        if count < 0:
            position = stream.tell()
            end = stream.seek(0, os.SEEK_END)
            stream.seek(position)
            if position > end:
                raise ValueError(f"offset={offset} is beyond the end of the file")
            count = (end - position) // kind.itemsize
        result = _core.empty((count,), kind, device=device, home=home)
        flat = _layout.flat_bytes(result)
        if flat is None:
            return result
        complete = _fill(stream, flat) // kind.itemsize
    return result if complete == count else result[:complete].copy()
