"""`python -m umem info`: what umem found on this machine and what follows from it."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from umem._residency import format_size

# What a device can do, in the order of importance here: (key of devices(), what it means).
_CAPABILITIES = (
    ("managed_memory", "managed memory"),
    ("concurrent_managed_access", "CPU and GPU may use it at the same time"),
    ("pageable_memory_access", "GPU reads ordinary memory (HMM, ATS)"),
    ("direct_host_access", "CPU reads GPU memory without migration"),
    ("host_native_atomics", "atomics across CPU and GPU"),
    ("memory_pools", "memory pools"),
)


def report(facts: dict[str, Any]) -> str:
    """umem.info() as text for people."""
    limit = facts["limit"]
    rows = [
        ("umem", facts["version"]),
        ("backend", f"{facts['backend']} ({facts['reason']})"),
        ("driver", _driver(facts)),
        ("kernels", "built in" if facts["kernels"] else "not in this build (UMEM_CUDA=0)"),
        ("limit", "none" if limit is None else format_size(limit)),
        ("Python", f"{platform.python_version()}, NumPy {np.__version__}, {platform.platform()}"),
        ("page size", format_size(facts["page_size"])),
        ("NUMA nodes", _nodes(facts)),
        ("devices", str(len(facts["devices"])) if facts["devices"] else "none"),
    ]
    lines = [f"{name:<10} {value}" for name, value in rows]
    for device in facts["devices"]:
        lines += ["", *_device(device)]
    return "\n".join(lines)


def _driver(facts: dict[str, Any]) -> str:
    if facts["driver"] is None:
        return "none in use"
    return f"CUDA {facts['driver_version']} from {facts['library']}"


def _nodes(facts: dict[str, Any]) -> str:
    nodes = ", ".join(map(str, facts["numa_nodes"]))
    if len(facts["numa_nodes"]) < 2 or not facts["devices"]:
        return nodes
    where = "next to their GPU" if facts["numa"] else "anywhere (numa:off)"
    return f"{nodes}; pages on the host are made {where}"


def _device(device: dict[str, Any]) -> list[str]:
    major, minor = device["compute_capability"]
    node = device["numa_node"]
    lines = [
        f"cuda:{device['index']}  {device['name']}",
        f"  {'compute capability':<42} {major}.{minor}",
        f"  {'memory':<42} {format_size(device['total_memory'])}",
        f"  {'multiprocessors':<42} {device['multiprocessors']}",
        f"  {'L2 cache':<42} {format_size(device['l2_cache'])}",
        f"  {'next to NUMA node':<42} {'unknown' if node is None else node}",
    ]
    lines += [f"  {text:<42} {'yes' if device[key] else 'no'}" for key, text in _CAPABILITIES]
    if not device["concurrent_managed_access"]:
        lines.append("  every kernel completes before it returns on this device")
    return lines
