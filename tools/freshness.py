"""Decide whether a compiled file still matches its inputs.

A compiled file is fresh when a fingerprint of its command line and of everything it includes from
`src/` equals the one written beside it. Contents are compared, not times: a checkout, a copied tree
or a changed compiler flag must never leave a stale object behind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

# Conditional includes count too: an include that is not taken costs a rebuild, never a stale file.
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def with_includes(source: Path, root: Path) -> list[Path]:
    """The file and all it includes with quotes, looked for beside the includer and under root."""
    found: dict[Path, None] = {}
    pending = [source]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found[path] = None
        for name in _INCLUDE.findall(path.read_bytes()):
            for folder in (path.parent, root):
                candidate = folder / name.decode()
                if candidate.is_file():
                    pending.append(candidate)
                    break
    return sorted(found)


def fingerprint(command: Iterable[str], files: Iterable[Path]) -> str:
    """A digest of a command line and the contents of its inputs."""
    digest = hashlib.sha256(repr(list(command)).encode())
    for path in files:
        digest.update(repr(path.as_posix()).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _note_path(target: Path) -> Path:
    return target.with_name(target.name + ".fingerprint")


def is_fresh(target: Path, mark: str) -> bool:
    """Whether target exists and was built from what mark describes."""
    note = _note_path(target)
    return target.is_file() and note.is_file() and note.read_text() == mark


def set_fresh(target: Path, mark: str) -> None:
    """Record that target has been built from what mark describes."""
    _note_path(target).write_text(mark)


def write_if_changed(path: Path, text: str) -> None:
    """Write a generated file, leaving it alone if it already says the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
