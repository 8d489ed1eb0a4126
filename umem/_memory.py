"""memory_summary(): the statistics as a table for people."""

from __future__ import annotations

from typing import Any

from umem import _core
from umem._residency import format_size


def memory_summary(device: object = None) -> str:
    """memory_stats() as a table, for one GPU or (None) all together."""
    stats = _core.memory_stats(device)
    limit = stats["limit_bytes"]
    where = "all devices together" if device is None else f"device {device}"
    lines = [
        f"umem memory of {where}, limit {'none' if limit is None else format_size(limit)}",
        f"{'':<16}{'now':>12}{'peak':>12}{'in all':>12}{'freed':>12}",
        _row("in arrays", stats, "allocated_bytes", format_size),
        _row("held", stats, "reserved_bytes", format_size),
        _row("allocations", stats, "active", str),
        f"{'waiting':<16}{format_size(stats['waiting_bytes']):>12}"
        "  (freed by the program, in use by a GPU)",
        f"out of memory {stats['num_ooms']} times, after {stats['num_alloc_retries']} retries",
    ]
    return "\n".join(lines)


def _row(title: str, stats: dict[str, Any], counter: str, text: Any) -> str:
    row = f"{title:<16}"
    for part in ("current", "peak", "allocated", "freed"):
        value = stats.get(f"{counter}.all.{part}")
        row += f"{'' if value is None else text(value):>12}"
    return row.rstrip()
