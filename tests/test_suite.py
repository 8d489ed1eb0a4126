"""The suite's own hooks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

SKIPS = {
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='why')\ndef test_a(): pass",
    "test_call.py": "import pytest\ndef test_a(): pytest.skip('why')",
    "test_import.py": "import pytest\ndef test_a(): pytest.importorskip('nowhere', reason='why')",
    "test_file.py": "import pytest\npytest.skip('why', allow_module_level=True)",
}
OTHERS = {
    "test_passes.py": "def test_a(): pass",
    "test_expected.py": "import pytest\n@pytest.mark.xfail\ndef test_a(): assert False",
}


def run_suite(folder, files, switch, *options):
    """Exit status of a run of these files, and its summary's part about skips."""
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    (folder / "conftest.py").write_text("from skips import pytest_configure\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, *options, folder],
        env={**os.environ, "UMEM_NO_SKIPS": switch, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, done.stdout.partition("UMEM_NO_SKIPS makes a failure")[2]


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two"])
def test_a_skip_fails_where_none_is_to_be(tmp_path, options):
    if options:
        pytest.importorskip("xdist")
    status, told = run_suite(tmp_path, {**SKIPS, **OTHERS}, "1", *options)
    assert status == 1
    for name in SKIPS:
        assert name in told
    assert told.count("why") == len(SKIPS)
    for name in OTHERS:
        assert name not in told


def test_nothing_skipped_is_fine(tmp_path):
    assert run_suite(tmp_path, OTHERS, "1") == (0, "")


@pytest.mark.parametrize("switch", ["", "0"])
def test_elsewhere_a_skip_is_fine(tmp_path, switch):
    assert run_suite(tmp_path, {**SKIPS, **OTHERS}, switch) == (0, "")
