"""The benchmarks run, say what they should, and read what they are given; what they find is not looked at."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The modules of benchmarks/, which are no package and have names of everyday use."""
    sys.path.insert(0, str(BENCHMARKS))
    names = ("peers", "pool", "report")
    before = {name: sys.modules.pop(name, None) for name in names}
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in names:
            sys.modules.pop(name, None)
            if before[name] is not None:
                sys.modules[name] = before[name]


def test_a_run_on_the_host_has_every_line(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "UMEM_BACKEND": "host", "CFLAGS": "-O0"}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", "--effort", "0.0001", "--out", tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("bench-cpu-*.json")
    result = json.loads(path.read_text())
    assert result["machine"]["versions"]["umem"]
    told = " ".join(line["name"] for line in result["lines"])
    for part in (
        "np.asarray", "4 KiB", "holes", "live arrays", "C: ", "live blocks", "eight threads", "lost",
        "bookkeeping", "calls of the driver", "first 1 arrays", "fill and free", "c = a + b", "replay of",
        "uniform float32", "normal float64",
    ):  # fmt: skip
        assert part in told, part
    for line in result["lines"]:
        assert all("torch" in peer for peer in line.get("not available", ())), line
        assert line["name"] in done.stdout
        for ratio in line.get("ratios", {}).values():
            assert ratio["ratio"] > 0
        if "microseconds" in line:
            assert line["microseconds"]["umem"] > 0
    lost = next(line for line in result["lines"] if "lost" in line["name"])
    assert lost["value"] == 0


def test_without_a_compiler_the_rest_is_measured(bench, monkeypatch, capsys):
    monkeypatch.setenv("CC", "no-such-compiler")
    report = bench["report"].Report()
    bench["pool"].in_c(report)
    assert "no-such-compiler" in report.lines[0]["not available"]["umem"]
    assert "not available" in capsys.readouterr().out


def test_ratios_and_aims(bench, capsys):
    report = bench["report"].Report()
    figures = {"umem": 2.0, "slow": 8.0, "fast": 1.0}
    report.add("good", figures, {"slow": ("time", 0.25), "umem": ("microseconds", 2.0)})
    report.add("rate", figures, {"slow": ("rate", 4.0)})
    report.add("no aim", figures, {"fast": ("time", None), "absent": ("time", 0.1)})
    report.add_count("count", 3, 3)
    assert report.missed() == []
    report.add("bad", figures, {"slow": ("time", 0.25), "fast": ("time", 1.5)})
    report.add("bad rate", figures, {"fast": ("rate", 0.6)})
    report.add("bad figure", figures, {"umem": ("microseconds", 1.9)})
    report.add_count("bad count", 3, 2)
    assert report.missed() == ["bad", "bad rate", "bad figure", "bad count"]
    told = capsys.readouterr().out
    assert told.count("NOT MET") == 4
    assert report.lines[0]["ratios"]["slow"] == {"kind": "time", "ratio": 0.25, "aim": 0.25, "met": True}  # fmt: skip


def test_a_peer_that_fails_is_told_and_left_out(bench):
    peers = bench["peers"].Peers()
    peers.look_for("good", lambda: bytearray)
    peers.look_for("absent", lambda: __import__("no_such_module"))

    def broken(size):
        raise RuntimeError(f"cannot have {size}\nmore")

    peers.look_for("broken", lambda: broken)
    assert list(peers.found) == ["good"]
    assert peers.missing["broken"] == "RuntimeError: cannot have 4096"
    assert "no_such_module" in peers.missing["absent"]


def test_without_the_fake_driver_the_rest_is_measured(bench, monkeypatch, capsys):
    from fake_cuda import build

    def fails(folder):
        raise build.BuildError("no cuda.h\nmore")

    monkeypatch.setattr(build, "build", fails)
    report = bench["report"].Report()
    bench["pool"].driver_calls(report)
    assert report.lines[0]["not available"] == {"umem": "no cuda.h"}


@pytest.mark.parametrize("name", ["trace.txt", "trace.txt.gz"])
def test_reading_a_trace(bench, tmp_path, name):
    import gzip

    path = tmp_path / name
    opened = gzip.open if name.endswith("gz") else open
    with opened(path, "wt") as file:
        file.write("# a comment\n\na x 100\na y 0 0 cuda:0\nf x\na x 7\nf y 0\nf x\n")
    read = bench["pool"].read_trace
    assert read(path) == [(0, 100), (1, 0), (0, -1), (0, 7), (1, -1), (0, -1)]
    asked = []
    bench["pool"].replay(read(path), asked.append)
    assert asked == [100, 0, 7]
    with opened(path, "wt") as file:
        file.write("b x 100\n")
    with pytest.raises(ValueError, match="not a line of a trace"):
        read(path)


def test_the_recorded_trace_frees_what_it_allocates(bench):
    (path,) = (BENCHMARKS / "traces").iterdir()
    alive = set()
    for number, size in bench["pool"].read_trace(path):
        if size >= 0:
            assert number not in alive
            alive.add(number)
        else:
            alive.remove(number)
    assert not alive
