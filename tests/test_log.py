"""record_allocations, and `python -m umem bench replay`."""

import io
import os
import random
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from backends import environment

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
HEADER = "umem-allocations 1\n"


def record(umem, work):
    file = io.StringIO()
    with umem.record_allocations(file):
        kept = work()
    text = file.getvalue()
    assert text.startswith(HEADER)
    assert kept is None or kept
    return text[len(HEADER) :].splitlines()


class TestRecording:
    def test_is_what_happened(self, umem):
        def work():
            a = umem.empty(1000, "u1")
            b = umem.empty(2 * MIB, "u1", home="cpu")
            del a
            c = umem.empty(1000, "u1")
            del b
            return [c]

        assert record(umem, work) == [
            "a 0 1000 0 -",
            f"a 1 {2 * MIB} 0 cpu",
            "f 0",
            "a 2 1000 0 -",
            "f 1",
        ]

    def test_small_arrays_that_are_at_hand(self, umem):
        for _ in range(10):
            umem.empty(100, "u1")
        lines = record(umem, lambda: [umem.empty(100, "u1") for _ in range(5)].clear())
        assert lines[:5] == [f"a {i} 100 0 -" for i in range(5)]
        assert sorted(lines[5:]) == [f"f {i}" for i in range(5)]

    def test_leaves_out_what_is_no_allocation(self, umem):
        before = umem.empty(1000, "u1")
        large = umem.empty(MIB, "u1")

        def work():
            nonlocal before, large
            kept = umem.empty(0), umem.asarray(large), large[10:]
            del kept
            before = large = None

        assert record(umem, work) == []

    def test_stops_at_the_end(self, umem):
        file = io.StringIO()
        with umem.record_allocations(file):
            a = umem.empty(1, "u1")
        text = file.getvalue()
        b = umem.empty(2, "u1")
        del a, b
        assert file.getvalue() == text == HEADER + "a 0 1 0 -\n"

    def test_paths(self, umem, tmp_path):
        for path in (tmp_path / "log", str(tmp_path / "log2")):
            with umem.record_allocations(path):
                umem.empty(7, "u1")
            assert Path(path).read_text() == HEADER + "a 0 7 0 -\nf 0\n"

    def test_one_at_a_time(self, umem):
        file = io.StringIO()
        with umem.record_allocations(file):
            for other in (umem.record_allocations(io.StringIO()), umem.record_allocations(file)):
                with pytest.raises(RuntimeError, match="recorded already"):
                    other.__enter__()
            umem.empty(7, "u1")
        assert file.getvalue() == HEADER + "a 0 7 0 -\nf 0\n"
        assert record(umem, lambda: None) == []

    def test_bad_files(self, umem, tmp_path):
        with pytest.raises(OSError), umem.record_allocations(tmp_path / "none" / "log"):
            pass
        for bad in (1, None, object()):
            with pytest.raises(TypeError, match="file"), umem.record_allocations(bad):
                pass
        closed = io.StringIO()
        closed.close()
        with pytest.raises(ValueError), umem.record_allocations(closed):
            umem.empty(7, "u1")
        assert record(umem, lambda: None) == []  # none of those is left open

    def test_files_of_bytes_are_refused_before_anything_is_recorded(self, umem):
        begun = False
        with pytest.raises(TypeError), umem.record_allocations(io.BytesIO()):
            begun = True
        assert not begun  # what is recorded then would be lost
        assert record(umem, lambda: None) == []

    def test_ending_another_one(self, umem):
        """An object that records nothing, or no more, leaves the recording of others alone."""
        other, ended = (umem.record_allocations(io.StringIO()) for _ in range(2))
        with ended:
            pass
        file = io.StringIO()
        with umem.record_allocations(file):
            for recording in (other, ended):
                with pytest.raises(RuntimeError, match="not entered"):
                    recording.__exit__(None, None, None)
            umem.empty(7, "u1")
        assert file.getvalue() == HEADER + "a 0 7 0 -\nf 0\n"

    def test_is_written_when_the_block_fails(self, umem):
        file = io.StringIO()
        with pytest.raises(KeyError), umem.record_allocations(file):
            umem.empty(7, "u1")
            raise KeyError
        assert file.getvalue() == HEADER + "a 0 7 0 -\nf 0\n"

    def test_an_object_can_be_used_again(self, umem, tmp_path):
        recording = umem.record_allocations(tmp_path / "log")
        for size in (7, 8):
            with recording:
                umem.empty(size, "u1")
            assert (tmp_path / "log").read_text() == HEADER + f"a 0 {size} 0 -\nf 0\n"

    def test_random_traffic_is_followed_exactly(self, umem):
        rng = random.Random(3)
        arrays, sizes, expected = {}, {}, []

        def work():
            for _ in range(2000):
                if arrays and rng.random() < 0.45:
                    key = rng.choice(list(arrays))
                    del arrays[key]
                    expected.append(f"f {key}")
                    continue
                key, size = len(sizes), int(2 ** rng.uniform(0, 18))
                arrays[key] = umem.empty(size, "u1")
                sizes[key] = size
                expected.append(f"a {key} {size} 0 -")

        assert record(umem, work) == expected
        arrays.clear()

    def test_threads(self, umem, tmp_path):
        def work():
            for i in range(300):
                umem.empty(100 + i, "u1")
                umem.empty(70_000, "u1")

        path = tmp_path / "log"
        threads = [threading.Thread(target=work) for _ in range(4)]
        with umem.record_allocations(path):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        from umem._bench import peak_of, read_recording

        events = read_recording(path.read_text().splitlines())
        assert len(events) == 4 * 300 * 4
        assert sum(e.size for e in events) == 4 * sum(100 + i + 70_000 for i in range(300))
        assert 70_000 <= peak_of(events) <= 4 * 70_400

    def test_limits_hold_meanwhile(self, umem):
        umem.trim()
        umem.set_limit(umem.memory_stats()["reserved_bytes.all.current"] + 4 * MIB)

        def work():
            with pytest.raises(umem.OutOfMemoryError):
                umem.empty(100 * MIB, "u1")
            umem.empty(7, "u1")

        assert record(umem, work) == ["a 0 7 0 -", "f 0"]

    def test_what_could_not_be_recorded_is_said(self, umem, monkeypatch):
        end = umem._core.log_end
        monkeypatch.setattr(umem._core, "log_end", lambda: (end()[0], False))
        file = io.StringIO()
        with pytest.warns(RuntimeWarning, match="ends early"), umem.record_allocations(file):
            umem.empty(7, "u1")
        assert (
            file.getvalue()
            == HEADER + "a 0 7 0 -\nf 0\n# ends early: there was no memory to record more\n"
        )

    def test_left_open_at_the_end_of_the_program(self, run_python):
        run_python("import umem; umem.record_allocations('/dev/null').__enter__(); umem.empty(5)")


GOOD = """\
umem-allocations 1
# a comment

a 0 1000 0 -
a 1 3000000 0 cpu
f 0
a 2 500 7 cuda:7
"""

BAD = {
    "": 1,
    "something else\n": 1,
    "umem-allocations 2\n": 1,
    HEADER + "a 0 1000 0\n": 2,
    HEADER + "x 0\n": 2,
    HEADER + "# fine\na 0 -5 0 -\n": 3,
    HEADER + "a 0 0 0 -\n": 2,
    HEADER + "a 0 1e3 0 -\n": 2,
    HEADER + "a 0 10 0 gpu\n": 2,
    HEADER + "a 0 10 0 cuda:\n": 2,
    HEADER + "a 0 10 0 -\na 0 10 0 -\n": 3,
    HEADER + "a 0 10 0 -\nf 0\na 0 10 0 -\n": 4,
    HEADER + "f 0\n": 2,
    HEADER + "a 0 10 0 -\nf 0\nf 0\n": 4,
    HEADER + "a 0 10 0 -\nf 0 1\n": 3,
    HEADER + "a 99999999999999999999 10 0 -\n": 2,
    HEADER + "a ü 10 0 -\n": 2,
    HEADER + f"a 0 {1 << 63} 0 -\n": 2,
    HEADER + "a" * 5000: 2,
    "\0" * 5000: 1,
    HEADER + "# " + "a" * 5000 + "\na 0 10 0 -\n": 2,
}


@pytest.fixture
def bench(umem, capsys):
    """`python -m umem bench` with arguments, in this process: exit status, output and errors."""
    from umem import __main__

    def run(*arguments):
        try:
            status = __main__.main(["bench", *map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


class TestReplay:
    def test_a_recording(self, umem, bench, tmp_path):
        path = tmp_path / "log"
        with umem.record_allocations(path):
            arrays = [umem.empty(n, "u1") for n in (10, 1000, 100_000, 3 * MIB)]
            del arrays[1:3]
            arrays.append(umem.empty(2000, "u1", home="cpu"))
        arrays.clear()
        before = umem.memory_stats()["allocation.all.allocated"]
        status, out, err = bench("replay", path, "--repeat", 3)
        assert (status, err) == (0, "")
        assert "7 events: 5 allocations, 2 frees; at most 3.1 MiB in use" in out
        row = out.splitlines()[-1]
        assert row.startswith("umem")
        assert row.endswith("%")
        assert umem.memory_stats()["allocation.all.allocated"] == before + 15

    def test_devices_of_other_machines(self, umem, bench, tmp_path):
        path = tmp_path / "log"
        path.write_text(GOOD)
        assert bench("replay", path)[0] == 0

    def test_numa_nodes_of_other_machines(self, umem, bench, tmp_path):
        path = tmp_path / "log"
        path.write_text(HEADER + "a 0 10 0 numa:0\na 1 10 0 numa:999\n")
        status, out, err = bench("replay", path)
        assert (status, err) == (0, "")
        assert "umem  " in out

    def test_a_file_without_an_end(self, umem, bench):
        status, _, err = bench("replay", "/dev/zero")
        assert status == 1
        assert err.startswith("/dev/zero: line 1: ")

    def test_an_empty_one(self, umem, bench, tmp_path):
        path = tmp_path / "log"
        path.write_text(HEADER)
        status, out, _ = bench("replay", path, "--peer", "numpy")
        assert status == 0
        assert "0 events" in out

    def test_peers(self, umem, bench, tmp_path):
        pytest.importorskip("torch")
        path = tmp_path / "log"
        path.write_text(GOOD)
        status, out, err = bench(
            "replay", path, "--peer", "numpy", "--peer", "torch", "--repeat", 2
        )
        assert (status, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()[2:]] == ["umem", "numpy", "torch"]

    def test_peers_that_are_not_there(self, umem, bench, tmp_path, monkeypatch):
        path = tmp_path / "log"
        path.write_text(GOOD)
        for peer in ("cupy", "rmm"):
            monkeypatch.setitem(sys.modules, peer, None)
            status, out, err = bench("replay", path, "--peer", peer)
            assert status == 1
            assert "umem  " in out
            assert err.startswith(f"{peer}: ModuleNotFoundError")

    @pytest.mark.parametrize("text", BAD)
    def test_bad_files(self, umem, bench, tmp_path, text):
        path = tmp_path / "log"
        path.write_text(text)
        status, out, err = bench("replay", path)
        assert (status, out) == (1, "")
        assert err.startswith(f"{path}: line {BAD[text]}: ")

    def test_bad_calls(self, umem, bench, tmp_path):
        path = tmp_path / "log"
        status, _, err = bench("replay", path)
        assert (status, err) == (1, f"{path}: No such file or directory\n")
        path.write_text(GOOD)
        for arguments in (
            (),
            ("other",),
            ("replay",),
            ("replay", path, "--repeat", 0),
            ("replay", path, "--peer", "x"),
        ):
            assert bench(*arguments)[0] == 2, arguments

    def test_too_large(self, umem, bench, tmp_path):
        path = tmp_path / "log"
        path.write_text(HEADER + f"a 0 {1 << 60} 0 -\n")
        status, _, err = bench("replay", path)
        assert status == 1
        assert err.startswith("umem: OutOfMemoryError")

    def test_command(self, backend, tmp_path):
        path = tmp_path / "log"
        path.write_text(GOOD)
        done = subprocess.run(
            [sys.executable, "-m", "umem", "bench", "replay", str(path), "--repeat", "1"],
            cwd=ROOT, env={**os.environ, **environment(backend)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "per event" in done.stdout

    def test_peak(self, umem):
        from umem._bench import peak_of, read_recording

        assert peak_of(read_recording(GOOD.splitlines())) == 3_001_000
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert peak_of([]) == 0
