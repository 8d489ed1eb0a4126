"""Writes what a GPU run found to $UMEM_RESULTS_DIR/gpu-tests-<device>.json.

The machine, counts by file, and every failure.
"""

from __future__ import annotations

import collections
import json
import os
import re
import sys
from pathlib import Path

_outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
_failures: list[str] = []


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid.partition("::")[0]][report.outcome] += 1
    if report.failed:
        _failures.append(f"{report.nodeid} ({report.when})")


def pytest_sessionfinish(session, exitstatus):
    where = os.environ.get("UMEM_RESULTS_DIR")
    if not where or not _outcomes:
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
    from machine import machine

    facts = machine()
    device = re.sub(r"[^a-z0-9]+", "-", "-".join(facts["devices"]).lower()).strip("-") or "none"
    total = sum(_outcomes.values(), collections.Counter())
    report = {
        "machine": facts,
        "exit_status": int(exitstatus),
        "total": total,
        "files": _outcomes,
        "failures": _failures,
    }
    path = Path(where) / f"gpu-tests-{device}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
