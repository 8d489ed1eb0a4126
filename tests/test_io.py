"""save, load and fromfile: NumPy's files, into managed memory."""

import io
import os
import pathlib

import numpy as np
import pytest

from support import (
    DTYPES,
    VIEWS,
    allocated,
    assert_same,
    assert_same_array,
    outcome,
    sample,
    walked_strides,
)


class TestSaveAndLoad:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_files_are_numpys(self, umem, tmp_path, dtype, view):
        a, n = VIEWS[view](umem.array(sample(dtype))), VIEWS[view](sample(dtype))
        umem.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "n.npy", n)
        assert_same(np.load(tmp_path / "a.npy"), n)
        for name in ("a.npy", "n.npy"):
            loaded = umem.load(tmp_path / name)
            assert_same_array(umem, loaded, n)
            assert walked_strides(loaded) == walked_strides(np.load(tmp_path / "n.npy"))
            assert loaded.flags.writeable

    def test_bytes_are_numpys(self, umem):
        for n in (
            sample("f4"),
            sample("f4").T,
            np.zeros((0, 3)),
            np.array(5),
            sample(">i4"),
            sample("S3"),
            sample([("x", "f4"), ("n", "i8")]),
        ):
            ours, theirs = io.BytesIO(), io.BytesIO()
            umem.save(ours, umem.array(n))
            np.save(theirs, n)
            assert ours.getvalue() == theirs.getvalue()

    def test_names(self, umem, tmp_path):
        umem.save(tmp_path / "x", umem.arange(3))
        assert (tmp_path / "x.npy").exists()
        umem.save(str(tmp_path / "y"), [1, 2])
        assert umem.load(str(tmp_path / "y.npy")).tolist() == [1, 2]
        umem.save(os.fspath(tmp_path / "z.npy"), np.arange(3))
        assert umem.load(pathlib.Path(tmp_path / "z.npy")).tolist() == [0, 1, 2]
        umem.save(file=tmp_path / "w.npy", arr=umem.arange(3))
        assert umem.load(file=tmp_path / "w.npy").tolist() == [0, 1, 2]

    def test_open_files_keep_their_position(self, umem, tmp_path):
        with (tmp_path / "several").open("w+b") as file:
            file.write(b"before")
            umem.save(file, umem.arange(3))
            umem.save(file, umem.ones((2, 2), "f4"))
            file.write(b"after")
            file.seek(6)
            assert umem.load(file).tolist() == [0, 1, 2]
            assert umem.load(file).tolist() == [[1, 1], [1, 1]]
            assert file.read() == b"after"
            assert not file.closed

    def test_any_object_that_reads(self, umem):
        class Slow:
            """A pipe: reads a few bytes at a time, cannot say where it is."""

            def __init__(self, data):
                self.data = io.BytesIO(data)

            def read(self, count=-1):
                return self.data.read(min(count, 7) if count >= 0 else -1)

            def seek(self, *args):
                return self.data.seek(*args)

            def tell(self):
                return self.data.tell()

        stream = io.BytesIO()
        np.save(stream, sample("f8"))
        assert_same_array(umem, umem.load(Slow(stream.getvalue())), sample("f8"))

    def test_large_arrays(self, umem, tmp_path):
        n = np.random.default_rng(0).random((2500, 1100))  # more than one piece of 16 MiB
        a = umem.array(n)
        for array in (a, a.T, a[::2]):
            umem.save(tmp_path / "a.npy", array)
            assert_same_array(umem, umem.load(tmp_path / "a.npy"), array.read())

    def test_pending_work_is_saved(self, umem):
        a = umem.zeros(1000, "f4")
        umem.add(a, 1, out=a)
        stream = io.BytesIO()
        umem.save(stream, a)
        stream.seek(0)
        assert (np.load(stream) == 1).all()

    def test_archives(self, umem, tmp_path):
        np.savez(tmp_path / "a.npz", x=sample("f4"), y=sample("S3"))
        np.savez_compressed(tmp_path / "b.npz", x=sample("f4"))
        loaded = umem.load(tmp_path / "a.npz")
        assert set(loaded) == {"x", "y"}
        assert_same_array(umem, loaded["x"], sample("f4"))
        assert_same_array(umem, loaded["y"], sample("S3"))
        assert_same_array(umem, umem.load(tmp_path / "b.npz")["x"], sample("f4"))

    @pytest.mark.filterwarnings("ignore:Stored array in format")
    def test_newer_versions_of_the_format(self, umem, tmp_path):
        n = np.zeros(3, [("é∂", "f4")])
        for write in (lambda path: np.save(path, n), lambda path: umem.save(path, umem.array(n))):
            write(tmp_path / "a.npy")
            assert umem.load(tmp_path / "a.npy").dtype == n.dtype
        long_header = np.zeros(3, [(f"field{i:04}" * 10, "f4") for i in range(1500)])
        umem.save(tmp_path / "a.npy", umem.array(long_header))
        assert np.load(tmp_path / "a.npy", max_header_size=10**6).dtype == long_header.dtype

    def test_where_the_loaded_array_lives(self, umem, tmp_path, on_gpu):
        umem.save(tmp_path / "a.npy", umem.arange(100_000))
        a = umem.load(tmp_path / "a.npy", device="cuda:0", home="cpu")
        assert a.home == "cpu"
        assert a.device == ("cuda:0" if on_gpu else "cpu")
        assert a[99_999] == 99_999

    @pytest.mark.backends("fake")
    def test_saving_moves_no_page(self, umem, fake, tmp_path):
        a = umem.full((512, 1024), 3, dtype="f4")
        a.prefetch("cuda")
        umem.synchronize()
        for array in (a, a.T, a[::2]):
            umem.save(tmp_path / "a.npy", array)
            np.save(tmp_path / "b.npy", array)
            assert a.residency().device == a.nbytes
        assert (np.load(tmp_path / "b.npy") == 3).all()


class TestBadFiles:
    def test_pickled_objects_are_refused(self, umem, tmp_path):
        np.save(tmp_path / "o.npy", np.array([None, {}], object), allow_pickle=True)
        with pytest.raises(ValueError, match="allow_pickle|object|pickle"):
            umem.load(tmp_path / "o.npy")
        np.savez(tmp_path / "o.npz", x=np.array([None], object))
        with pytest.raises(ValueError, match="allow_pickle|object|pickle"):
            umem.load(tmp_path / "o.npz")
        with pytest.raises((ValueError, TypeError)):
            umem.save(tmp_path / "p.npy", [None, {}])

    @pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x80\x04]\x94."], ids=["text", "pickle"])
    def test_other_files_are_named_as_such(self, umem, tmp_path, content):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match=r"neither a \.npy nor a \.npz file"):
            umem.load(tmp_path / "other")

    @pytest.mark.parametrize(
        "content",
        [b"", b"\x93NUMPY", b"nonsense", b"\x93NUMPY\x09\x00", b"PK\x03\x04", b"\x80\x04N."],
    )
    def test_what_is_no_array_file(self, umem, tmp_path, content):
        path = tmp_path / "bad.npy"
        path.write_bytes(content)
        with pytest.raises((ValueError, EOFError, OSError, Exception)) as error:
            umem.load(path)
        assert not isinstance(
            error.value, (AssertionError, AttributeError, SystemError, MemoryError)
        )

    def test_files_that_end_too_early(self, umem, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(1000))
        whole = (tmp_path / "a.npy").read_bytes()
        before = allocated(umem)
        for length in range(0, len(whole), 397):
            (tmp_path / "cut.npy").write_bytes(whole[:length])
            with pytest.raises((ValueError, EOFError)):
                umem.load(tmp_path / "cut.npy")
        assert allocated(umem) == before

    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904,), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': 3, }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
            "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,), }",
            "{'descr': '<f8', 'fortran_order': 3, 'shape': (1,), }",
            "{'descr': '<f8', 'shape': (1,), }",
            "__import__('os').system('true')",
            "not python",
        ],
    )
    def test_headers_that_lie(self, umem, tmp_path, header):
        text = header.encode() + b"\n"
        (tmp_path / "a.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
        )
        with pytest.raises((ValueError, OSError, MemoryError)):
            umem.load(tmp_path / "a.npy")
        assert umem.ones(3).sum() == 3

    def test_missing_files(self, umem, tmp_path):
        with pytest.raises(FileNotFoundError):
            umem.load(tmp_path / "nothing.npy")
        with pytest.raises(FileNotFoundError):
            umem.fromfile(tmp_path / "nothing")
        with pytest.raises(FileNotFoundError):
            umem.save(tmp_path / "nowhere" / "a.npy", umem.ones(3))

    def test_files_are_closed_on_errors(self, umem, tmp_path):
        (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            with pytest.raises(ValueError):
                umem.load(tmp_path / "bad.npy")
        assert len(os.listdir("/proc/self/fd")) <= before + 1


class TestFromFile:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "raw"
        np.arange(1000, dtype="i4").tofile(path)
        return path

    @pytest.mark.parametrize(
        "arguments",
        [
            {}, {"dtype": "i4"}, {"dtype": "i4", "count": 10}, {"dtype": "i4", "count": 0}, {"dtype": "i4", "count": 5000},
            {"dtype": "i4", "offset": 8}, {"dtype": "i4", "offset": 8, "count": 3}, {"dtype": "u1", "count": 7, "offset": 3},
            {"dtype": "i4", "offset": 4000}, {"dtype": [("a", "i2"), ("b", "u2")]}, {"dtype": "f8", "count": -1}, {"dtype": "V3"},
            {"dtype": "i4", "offset": 3}, {"dtype": "M8[s]"},
        ],
        ids=str,
    )  # fmt: skip
    def test_is_numpys(self, umem, path, arguments):
        assert_same_array(umem, umem.fromfile(path, **arguments), np.fromfile(path, **arguments))
        assert_same_array(
            umem, umem.fromfile(str(path), **arguments), np.fromfile(path, **arguments)
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            {"dtype": "O"},
            {"dtype": "nonsense"},
            {"offset": -1},
            {"count": "x"},
            {"dtype": "i4", "offset": 8, "sep": " "},
        ],
        ids=str,
    )
    def test_refuses_what_numpy_refuses(self, umem, path, arguments):
        expected = outcome(np.fromfile, path, **arguments)
        assert expected[0][0] == "raises"
        actual = outcome(umem.fromfile, path, **arguments)
        assert actual[0][0] == "raises"
        assert issubclass(actual[0][1], (ValueError, TypeError, OSError))

    def test_open_files(self, umem, path):
        with path.open("rb") as ours, path.open("rb") as theirs:
            for arguments in ({"count": 3}, {"count": 2, "offset": 4}, {}):
                assert_same_array(
                    umem,
                    umem.fromfile(ours, "i4", **arguments),
                    np.fromfile(theirs, "i4", **arguments),
                )
                assert ours.tell() == theirs.tell()

    def test_text(self, umem, tmp_path):
        (tmp_path / "text").write_text("1, 2, 3.5, 4")
        for arguments in ({"sep": ","}, {"sep": ",", "count": 2}, {"sep": ",", "dtype": "f4"}):
            assert_same_array(
                umem,
                umem.fromfile(tmp_path / "text", **arguments),
                np.fromfile(tmp_path / "text", **arguments),
            )

    def test_an_empty_file(self, umem, tmp_path):
        (tmp_path / "empty").write_bytes(b"")
        assert umem.fromfile(tmp_path / "empty", "f4").shape == (0,)

    def test_where_the_array_lives(self, umem, path):
        assert umem.fromfile(path, "i4", home="cpu", device="cuda").home == "cpu"

    def test_tofile_of_numpy_writes_an_umem_array(self, umem, tmp_path):
        np.asarray(umem.arange(5)).tofile(tmp_path / "x")
        assert umem.fromfile(tmp_path / "x", "i8").tolist() == [0, 1, 2, 3, 4]
