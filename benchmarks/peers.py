"""The allocators that umem is compared with, as far as they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import umem

Allocate = Callable[[int], object]

#: bytes that RMM's pool may take: managed memory, of which a process here never has more than 4 GiB
RMM_MOST = 1 << 30


def optional(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@dataclass
class Peers:
    """Functions of a number of bytes, by name; what was tried and is not there, with the reason."""

    found: dict[str, Allocate] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def look_for(self, name: str, make: Callable[[], Allocate]) -> None:
        """Whatever goes wrong with a peer is no reason to have no figures of the others."""
        try:
            allocate = make()
            allocate(4096)
        except (
            Exception
        ) as error:  # of an import, a changed interface, a driver that lacks something
            text = str(error).strip().partition("\n")[0]
            self.missing[name] = f"{type(error).__name__}: {text}"
        else:
            self.found[name] = allocate


def _torch(device: str) -> Allocate:
    import torch

    return lambda size: torch.empty(size, dtype=torch.uint8, device=device)


def _cupy_empty() -> Allocate:
    import cupy

    return lambda size: cupy.empty(size, dtype=cupy.uint8)


def _cupy_pool() -> Allocate:
    import cupy

    pool = cupy.cuda.MemoryPool()
    return pool.malloc


def _cuda_core(managed: bool) -> Allocate:
    core = optional("cuda.core")
    if core is None or not hasattr(core, "Device"):
        core = importlib.import_module("cuda.core.experimental")
    device = core.Device(0)
    device.set_current()
    stream = device.default_stream
    source = core.ManagedMemoryResource() if managed else device
    return lambda size: source.allocate(size, stream=stream)


def _rmm(managed: bool) -> Allocate:
    import rmm

    upstream = rmm.mr.ManagedMemoryResource() if managed else rmm.mr.CudaMemoryResource()
    pool = rmm.mr.PoolMemoryResource(
        upstream, initial_pool_size=RMM_MOST // 4, maximum_pool_size=RMM_MOST
    )
    return lambda size: rmm.DeviceBuffer(size=size, mr=pool)


def allocators(on_gpu: bool) -> Peers:
    peers = Peers()
    peers.look_for("umem", lambda: lambda size: umem.empty(size, np.uint8))
    peers.look_for("np.empty", lambda: lambda size: np.empty(size, np.uint8))
    if not on_gpu:
        peers.look_for("torch, on the host", lambda: _torch("cpu"))
        return peers
    peers.look_for("torch", lambda: _torch("cuda"))
    peers.look_for("cupy", _cupy_empty)
    peers.look_for("cupy's pool", _cupy_pool)
    peers.look_for("cuda.core", lambda: _cuda_core(managed=False))
    peers.look_for("cuda.core, managed", lambda: _cuda_core(managed=True))
    peers.look_for("rmm", lambda: _rmm(managed=False))
    peers.look_for("rmm, managed", lambda: _rmm(managed=True))
    return peers
