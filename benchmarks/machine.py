"""What a result has to say of where it comes from."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def _commit() -> str:
    """UMEM_COMMIT, for a tree without its history, or what git says."""
    told = os.environ.get("UMEM_COMMIT")
    if told:
        return told
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def machine() -> dict[str, object]:
    """Date, commit, hardware, driver and the versions of the libraries that are loaded."""
    import umem

    facts = umem.info()
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "umem": umem.__version__,
    }
    for name in ("torch", "cupy", "jax", "numba"):
        if name in sys.modules:
            versions[name] = sys.modules[name].__version__
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "devices": [device["name"] for device in facts["devices"]],
        "driver": facts["driver"],
        "versions": versions,
    }
