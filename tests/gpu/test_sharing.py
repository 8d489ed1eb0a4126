"""torch, CuPy, JAX and Numba see the same bytes at the same address, through every protocol they speak."""

import gc

import numpy as np
import pytest


def address(a) -> int:
    return a.__array_interface__["data"][0]


@pytest.fixture
def a(umem):
    return umem.arange(6000, dtype=np.float32).reshape(60, 100)


class TestTorch:
    @pytest.mark.parametrize(
        "dtype",
        [
            "float16",
            "float32",
            "float64",
            "int8",
            "uint8",
            "int16",
            "int32",
            "int64",
            "complex64",
            "bool",
        ],
    )
    def test_as_tensor_aliases(self, umem, torch, dtype):
        a = umem.ones((3, 5), dtype=dtype)
        t = torch.as_tensor(a)
        assert t.is_cuda
        assert t.data_ptr() == address(a)
        assert tuple(t.shape) == (3, 5)
        assert str(t.dtype) == f"torch.{dtype}"
        assert bool((t == 1).all())

    def test_as_tensor_on_the_device_aliases(self, a, torch):
        assert torch.as_tensor(a, device="cuda").data_ptr() == address(a)

    def test_as_tensor_on_the_cpu_copies_the_right_values(self, a, torch):
        t = torch.as_tensor(a, device="cpu")
        assert not t.is_cuda
        assert np.array_equal(t.numpy(), np.asarray(a))

    def test_from_dlpack_aliases(self, a, torch):
        t = torch.from_dlpack(a)
        assert t.is_cuda
        assert t.data_ptr() == address(a)

    def test_on_cpu_gives_a_cpu_tensor_of_the_same_memory(self, a, torch):
        t = torch.from_dlpack(a.on("cpu"))
        assert not t.is_cuda
        assert t.data_ptr() == address(a)
        g = torch.from_dlpack(a.on("cuda"))
        assert g.is_cuda
        assert g.data_ptr() == address(a)
        t[0, 0] = 42
        assert float(g[0, 0]) == 42

    def test_strided_and_transposed_views(self, a, torch):
        for view in (a[::2, 3::7], a.T, a[10:20], a[5]):
            t = torch.as_tensor(view)
            assert t.data_ptr() == address(view)
            assert np.array_equal(t.cpu().numpy(), np.asarray(view))

    def test_negative_strides_are_refused_not_fatal(self, a, torch):
        with pytest.raises(BufferError, match="stride"):
            torch.as_tensor(a[::-1])
        with pytest.raises(BufferError, match="stride"):
            torch.from_dlpack(a[:, ::-1])

    def test_what_torch_writes_is_seen(self, a, torch):
        t = torch.as_tensor(a)
        t.fill_(3)
        assert a[0, 0] == 3
        t.add_(1)
        assert np.asarray(a).sum() == 4 * 6000
        assert "4." in repr(a)

    def test_umem_kernels_and_torch_kernels_are_ordered(self, umem, torch):
        a = umem.zeros(1 << 22, dtype=np.float32)
        t = torch.as_tensor(a)
        for _ in range(10):
            a += 1
            t.mul_(2)
        assert a[1 << 21] == 2046
        assert float(t[0]) == 2046

    def test_umem_work_on_a_torch_stream(self, umem, torch):
        a = umem.zeros(1 << 22, dtype=np.float32)
        b = umem.empty_like(a)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), umem.stream(stream):
            torch.as_tensor(a).fill_(2)
            umem.multiply(a, 3, out=b)
            t = torch.as_tensor(b) + 1
        stream.synchronize()
        assert float(t[-1]) == 7
        assert b[5] == 6

    def test_work_outlives_its_stream(self, umem, torch):
        a = umem.zeros(1 << 24, dtype=np.float32)
        stream = torch.cuda.Stream()
        with umem.stream(stream):
            for _ in range(20):
                umem.add(a, 1, out=a)
        del stream
        assert a[(1 << 24) - 1] == 20

    def test_tensors_keep_the_memory_alive(self, umem, torch):
        a = umem.full(100_000, 7, dtype=np.float32)
        t = torch.as_tensor(a)
        u = torch.from_dlpack(a)
        del a
        gc.collect()
        junk = [umem.zeros(100_000, dtype=np.float32) for _ in range(5)]
        assert float(t.sum()) == 700_000
        assert float(u[1]) == 7
        assert len(junk) == 5

    def test_memory_freed_while_torch_works_is_not_reused_early(self, umem, torch):
        big = umem.ones(1 << 24, dtype=np.float32)
        t = torch.as_tensor(big)
        result = torch.zeros(1 << 24, device="cuda")
        for _ in range(30):
            result += t
        del t, big
        other = umem.empty(1 << 24, dtype=np.float32)
        other.fill(1e9)
        assert float(result[-1]) == 30

    def test_tensor_to_umem_and_back(self, umem, torch):
        a = umem.ones(1000, dtype=np.float32)
        t = torch.as_tensor(a)
        b = umem.asarray(t)
        assert address(b) == address(a)
        c = umem.from_dlpack(t)
        assert address(c) == address(a)
        plain = torch.arange(10, device="cuda", dtype=torch.float32)
        d = umem.asarray(plain)
        assert address(d) != plain.data_ptr()
        assert d.tolist() == list(range(10))
        with pytest.raises(ValueError, match="copy"):
            umem.asarray(plain, copy=False)
        with pytest.raises(ValueError, match="copy"):
            umem.from_dlpack(plain, copy=False)
        cpu = umem.asarray(torch.arange(10))
        assert cpu.dtype == np.int64
        assert cpu.tolist() == list(range(10))

    def test_autograd_through_shared_memory(self, umem, torch):
        w = umem.ones((10, 4), dtype=np.float32)
        x = umem.full((20, 10), 2, dtype=np.float32)
        weight = torch.nn.Parameter(torch.as_tensor(w))
        assert weight.data_ptr() == address(w)
        loss = (torch.as_tensor(x) @ weight).square().mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        expected = 1 - 0.1 * 2 * 20 * 2 * 20 / (20 * 4)
        assert np.allclose(np.asarray(w), expected)

    def test_read_only_is_said(self, a, torch):
        a.flags.writeable = False
        with pytest.raises(Exception, match=r"(?i)read.?only|writ"):
            torch.as_tensor(a)

    def test_empty_and_zero_dimensional(self, umem, torch):
        assert torch.as_tensor(umem.zeros((0, 3), dtype=np.float32)).shape == (0, 3)
        assert torch.from_dlpack(umem.zeros((3, 0), dtype=np.float32)).shape == (3, 0)
        t = torch.as_tensor(umem.full((), 5, dtype=np.float32))
        assert t.shape == ()
        assert float(t) == 5


class TestCupy:
    def test_asarray_aliases(self, a, cupy):
        c = cupy.asarray(a)
        assert c.data.ptr == address(a)
        c *= 2
        assert np.asarray(a)[0, 5] == 10

    def test_dlpack_both_ways(self, umem, a, cupy):
        c = cupy.from_dlpack(a)
        assert c.data.ptr == address(a)
        plain = cupy.arange(5, dtype=cupy.float32)
        assert umem.from_dlpack(plain).tolist() == [0, 1, 2, 3, 4]
        assert umem.asarray(plain).tolist() == [0, 1, 2, 3, 4]

    def test_cupys_managed_memory_is_aliased(self, umem, cupy):
        with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
            c = cupy.arange(1000, dtype=cupy.float32)
            by_cai = umem.asarray(c)
            by_dlpack = umem.from_dlpack(c)
        assert address(by_cai) == c.data.ptr
        assert address(by_dlpack) == c.data.ptr
        c += 1
        assert by_cai[999] == 1000
        umem.add(by_dlpack, 1, out=by_dlpack)
        assert float(c[0]) == 2
        del c
        gc.collect()
        assert by_cai[1] == 3

    def test_a_stream_of_cupy(self, umem, cupy):
        a = umem.zeros(1 << 22, dtype=np.float32)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, umem.stream(stream):
            umem.add(a, 1, out=a)
            c = cupy.asarray(a) + 1
        assert float(c[-1]) == 2


class TestJax:
    def test_asarray_aliases(self, a, jax):
        j = jax.numpy.asarray(a)
        assert j.unsafe_buffer_pointer() == address(a)
        assert float(j.sum()) == float(np.asarray(a).sum())

    def test_dlpack(self, umem, a, jax):
        j = jax.numpy.from_dlpack(a)
        assert float(j[3, 7]) == 307
        b = umem.from_dlpack(jax.numpy.arange(5, dtype=np.float32))
        assert b.tolist() == [0, 1, 2, 3, 4]


class TestNumba:
    def test_as_cuda_array_aliases(self, a, cuda):
        d = cuda.as_cuda_array(a)
        assert d.__cuda_array_interface__["data"][0] == address(a)

    def test_a_kernel_takes_the_array(self, umem, cuda):
        @cuda.jit
        def double(x):
            i = cuda.grid(1)
            if i < x.size:
                x[i] *= 2

        a = umem.arange(1000, dtype=np.float32)
        double[8, 128](a)
        assert a[999] == 1998

    def test_a_stream_of_numba(self, umem, cuda):
        stream = cuda.stream()
        a = umem.zeros(1000, dtype=np.float32)
        with umem.stream(stream):
            umem.add(a, 1, out=a)
        assert a[5] == 1


class TestNumpy:
    def test_every_way_gives_the_same_address(self, a):
        ways = [
            np.asarray(a),
            np.from_dlpack(a),
            np.asarray(memoryview(a)),
            a.numpy(),
            np.from_dlpack(a.on("cpu")),
        ]
        for way in ways:
            assert way.__array_interface__["data"][0] == address(a)
            assert way.flags.writeable

    def test_asarray_of_a_view_comes_back(self, umem, a):
        assert address(umem.asarray(np.asarray(a)[3:])) == address(a) + 1200
