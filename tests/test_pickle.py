"""Pickle, copy and deepcopy."""

import copy
import gc
import io
import pickle

import numpy as np
import pytest

from support import (
    DTYPES,
    VIEWS,
    address,
    allocated,
    assert_same,
    assert_same_array,
    sample,
    walked_strides,
)

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def dump_out_of_band(a):
    buffers = []
    return pickle.dumps(a, protocol=5, buffer_callback=buffers.append), buffers


class TestRoundTrip:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_values_and_order(self, umem, dtype, protocol):
        for view in VIEWS.values():
            a, n = view(umem.array(sample(dtype))), view(sample(dtype))
            b, m = pickle.loads(pickle.dumps(a, protocol)), pickle.loads(pickle.dumps(n, protocol))
            assert_same_array(umem, b, n)
            assert b.dtype == dtype
            assert b.flags.writeable
            assert b.flags.c_contiguous == m.flags.c_contiguous
            assert b.flags.f_contiguous == m.flags.f_contiguous
            assert b.flags.owndata

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_c_and_fortran_order_are_kept(self, umem, protocol):
        for order in "CF":
            a = umem.array(sample("f8"), order=order)
            b = pickle.loads(pickle.dumps(a, protocol))
            assert b.flags[f"{order}_CONTIGUOUS"]
            assert b.strides == a.strides

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_a_view_carries_its_own_elements_only(self, umem, protocol):
        a = umem.zeros((1000, 1000))
        for view in (a[:2, :2], a[::500, ::500], a[5], a[:3].T):
            assert len(pickle.dumps(view, protocol)) < 200_000

    def test_two_names_of_one_array(self, umem):
        a = umem.arange(3)
        for protocol in PROTOCOLS:
            b, c = pickle.loads(pickle.dumps([a, a], protocol))
            assert b is c

    def test_read_only_arrays(self, umem):
        a = umem.arange(3)
        a.flags.writeable = False
        for protocol in PROTOCOLS:
            assert pickle.loads(pickle.dumps(a, protocol)).tolist() == [0, 1, 2]

    def test_the_python_implementation(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        for protocol in PROTOCOLS:
            stream = io.BytesIO()
            pickle._Pickler(stream, protocol).dump(a)
            assert_same_array(umem, pickle._loads(stream.getvalue()), a.read())

    def test_pending_work_is_in_the_pickle(self, umem):
        a = umem.zeros(1000, "f4")
        for protocol in PROTOCOLS:
            umem.add(a, 1, out=a)
            assert pickle.loads(pickle.dumps(a, protocol))[999] == protocol + 1

    def test_where_an_array_lives_is_kept_if_it_can_be(self, umem):
        a = umem.zeros(100_000, home="cpu")
        assert pickle.loads(pickle.dumps(a)).home in ("cpu", None)


class TestOutOfBand:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_round_trip(self, umem, dtype):
        for view in VIEWS.values():
            a, n = view(umem.array(sample(dtype))), view(sample(dtype))
            data, buffers = dump_out_of_band(a)
            assert_same_array(umem, pickle.loads(data, buffers=buffers), n)
            assert_same_array(
                umem, pickle.loads(data, buffers=[bytes(b.raw()) for b in buffers]), n
            )
            assert_same_array(
                umem, pickle.loads(data, buffers=[bytearray(b.raw()) for b in buffers]), n
            )

    def test_nothing_is_copied(self, umem):
        for a in (
            umem.arange(1000.0),
            umem.zeros((100, 50), order="F"),
            umem.arange(1000)[100:200],
        ):
            data, buffers = dump_out_of_band(a)
            assert len(data) < 1000
            assert len(buffers) == 1
            raw = np.frombuffer(buffers[0].raw(), "u1")
            assert raw.nbytes == a.nbytes
            assert raw.ctypes.data == address(a)

    def test_gaps_are_left_out(self, umem):
        a = umem.zeros((100, 100))[::2, ::2]
        data, buffers = dump_out_of_band(a)
        assert a.nbytes <= len(data) + sum(b.raw().nbytes for b in buffers) < a.nbytes + 1000

    def test_order_is_kept(self, umem):
        a = umem.array(sample("f4"), order="F")
        data, buffers = dump_out_of_band(a)
        assert walked_strides(pickle.loads(data, buffers=buffers)) == walked_strides(a)

    def test_loaded_arrays_have_memory_of_their_own(self, umem):
        a = umem.arange(5.0)
        data, buffers = dump_out_of_band(a)
        for given in (buffers, [bytearray(buffers[0].raw())]):
            b = pickle.loads(data, buffers=given)
            b[0] = 99
            assert a[0] == 0
            assert b.device == a.device

    def test_a_buffer_is_a_live_view(self, umem):
        a = umem.zeros(1000, "f4")
        data, buffers = dump_out_of_band(a)
        umem.add(a, 1, out=a)
        assert np.frombuffer(buffers[0].raw(), "f4")[999] == 1
        assert pickle.loads(data, buffers=buffers)[0] == 1

    def test_buffers_keep_the_memory(self, umem):
        gc.collect()
        before = allocated(umem)
        data, buffers = dump_out_of_band(umem.full(1000, 2.0))
        gc.collect()
        junk = umem.zeros(1000)
        assert pickle.loads(data, buffers=buffers).sum() == 2000
        del buffers, junk
        gc.collect()
        assert allocated(umem) == before

    def test_missing_buffers(self, umem):
        data, _ = dump_out_of_band(umem.arange(3))
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(data)

    @pytest.mark.parametrize("count", [0, 1, 23, 25, 1000])
    def test_buffers_of_another_size(self, umem, count):
        data, _ = dump_out_of_band(umem.arange(3))
        with pytest.raises((ValueError, pickle.UnpicklingError)):
            pickle.loads(data, buffers=[bytes(count)])


class TestBadPickles:
    def test_changed_ones_raise_and_never_crash(self, umem):
        data = pickle.dumps(umem.arange(6, dtype="i4").reshape(2, 3), 2)
        good = 0
        for position in range(len(data)):
            for value in (0x00, 0xFF, data[position] ^ 1):
                changed = data[:position] + bytes([value]) + data[position + 1 :]
                try:
                    loaded = pickle.loads(changed)
                except Exception:
                    continue
                if type(loaded) is umem.ndarray:
                    assert loaded.nbytes == loaded.read().nbytes
                    good += 1
        assert good > 0

    def test_object_dtypes_do_not_come_in_this_way(self, umem):
        function, arguments = umem.zeros(3, "i8").__reduce_ex__(5)[:2]
        rebuilt = function(*arguments)
        assert type(rebuilt) is umem.ndarray
        objects = [np.dtype("O") if isinstance(x, np.dtype) else x for x in arguments]
        texts = (
            ["O" if x in ("<i8", "i8") else x for x in objects if not hasattr(x, "raw")]
            if objects == list(arguments)
            else objects
        )
        with pytest.raises((TypeError, ValueError)):
            function(*texts)


class TestOtherProcesses:
    def test_pickles_load_in_a_new_interpreter(self, umem, run_python, tmp_path):
        path = tmp_path / "pickle"
        path.write_bytes(pickle.dumps([umem.arange(6.0).reshape(2, 3), umem.zeros(2, "M8[s]")]))
        out = run_python(
            f"import pickle; a, b = pickle.load(open({str(path)!r}, 'rb')); import umem; print(type(a) is umem.ndarray, a.tolist(), b.dtype)"
        )
        assert out.strip() == "True [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] datetime64[s]"

    def test_spawned_workers(self, run_python, tmp_path):
        script = tmp_path / "job.py"
        script.write_text(
            "import multiprocessing as mp, umem\n"
            "def work(a): return a * 2\n"
            "if __name__ == '__main__':\n"
            "    with mp.get_context('spawn').Pool(1) as pool:\n"
            "        print(pool.map(work, [umem.arange(3), umem.arange(3.0)[::-1]]))\n"
        )
        out = run_python(
            f"import runpy, sys; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"
        )
        assert out.split() == ["[umem.array([0,", "2,", "4]),", "umem.array([4.,", "2.,", "0.])]"]


class TestCopyModule:
    @pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_copies_have_memory_of_their_own(self, umem, dtype, make):
        for view in VIEWS.values():
            a, n = view(umem.array(sample(dtype))), view(sample(dtype))
            b, m = make(a), make(n)
            assert_same_array(umem, b, m)
            assert walked_strides(b) == walked_strides(m)
            assert b.flags.writeable
            if n.size:
                assert address(b) != address(a)

    def test_deepcopy_keeps_identity(self, umem):
        a = umem.arange(3)
        b, c, d = copy.deepcopy([a, a, {"x": a}])
        assert b is c is d["x"]
        assert b is not a

    def test_deepcopy_in_objects(self, umem):
        class Holder:
            pass

        holder = Holder()
        holder.a = umem.arange(3)
        holder.view = holder.a[1:]
        other = copy.deepcopy(holder)
        other.a[0] = 99
        assert holder.a[0] == 0
        assert_same(other.view, np.array([1, 2]))

    def test_where_an_array_lives_is_kept(self, umem):
        a = umem.zeros(100_000, home="cpu")
        for b in (copy.copy(a), copy.deepcopy(a), a.copy()):
            assert b.device == a.device
            assert b.home in ("cpu", None)
