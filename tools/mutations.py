"""Mutation run of the coherence rules (docs/coherence.md): takes one wait out at a time and sees which test fails.

    python tools/mutations.py [--only PATTERN] [--jobs N] [--list]

tools/mutations.toml lists the mutations. Each is applied in a copy of the tree, built there and tested until the
first test fails; docs/mutations.md gets what came out, of a run with --only the lines of the mutations that it
names. The exit status is 1 when one survives; it then has no line.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "mutations.toml"
RESULTS = ROOT / "docs" / "mutations.md"
COPIES = ROOT / "build" / "mutations"

TREE = ("src", "tests", "tools", "umem", "pyproject.toml", "setup.py", "README.md")
#: what a build has made already: compilers run for what changed only
PRODUCTS = ("build/kernels", "build/fake_cuda", "build/ctests")

#: what fails for most mutations, tried first: the tests of the rule, and core's
CORE = "tests/test_c.py::test_program[test_um_core]"
RULES = "tests/test_coherence.py"
FIRST = {
    "1": (f"{RULES}::TestRule1Asynchrony", CORE),
    "2": (f"{RULES}::TestRule2HostAccess", CORE),
    "3": (f"{RULES}::TestRule3LiveViews", CORE),
    "4": (f"{RULES}::TestRule4OtherLibraries", f"{RULES}::TestRule2HostAccess", CORE),
    "5": (CORE, f"{RULES}::TestRule5Reuse"),
    "6": (f"{RULES}::TestRule6WithoutConcurrentAccess", CORE),
    "7": (CORE, f"{RULES}::TestRule7Fork"),
    "discard": (CORE, "tests/test_placement.py::TestDiscard"),
}
TESTS = (
    RULES,
    CORE,
    "tests/test_streams.py",
    "tests/test_import.py",
    "tests/test_dlpack.py",
    "tests/test_interface.py",
    "tests/test_placement.py",
    "tests/test_buffer.py",
    "tests/test_lifetime.py",
    "tests/test_memory.py",
    "tests/test_threads.py",
    "tests/test_failures.py",
    "tests/test_c.py",
)
TEST_LIMIT = 120  # seconds
RUN_LIMIT = 1800  # seconds for a mutation's tests together

INTRO = """\
# Mutation run of the coherence rules

Each line is one wait, order, mark or check of the [coherence rules](coherence.md) that was taken out of the code, and
the test that then failed first. "discard" stands for what keeps written bytes from being discarded.

`make mutations` repeats the run and rewrites this file. It applies the mutations of `tools/mutations.toml` one at a
time to a copy of the tree, builds it and runs the tests of coherence, streams, exchange, placement, lifetime, threads
and failures and the C tests on the fake driver. It fails when a mutation survives. `python tools/mutations.py --only
PATTERN` runs those whose rule, file or description matches. `tests/test_layout.py` checks that the table fits the code.
"""


@dataclass(frozen=True)
class Mutation:
    rule: str
    file: str
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.rule} | {self.file} | {self.what}"

    def count(self, root: Path) -> int:
        """How often the old text occurs: anything but 1 means that the table no longer fits the code."""
        return (root / self.file).read_text().count(self.old)

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def read_table() -> tuple[list[Mutation], list[dict[str, str]]]:
    """The mutations, and what is known to be invisible to any test, with the reason."""
    table = tomllib.loads(TABLE.read_text())
    return [Mutation(**entry) for entry in table["mutation"]], table["unseen"]


def copy_tree(copy: Path) -> None:
    for name in TREE:
        target = copy / name
        if target.is_dir():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(source, target)
    for source in [*(ROOT / name for name in PRODUCTS), *(ROOT / "build").glob("temp.*")]:
        target = copy / source.relative_to(ROOT)
        if source.is_dir() and not target.exists():
            shutil.copytree(source, target)


def build(copy: Path) -> str:
    """Builds in place: the compiler's messages when that fails, else nothing."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def run_tests(copy: Path, tests: Sequence[str]) -> str | None:
    """The first test that fails, or None. A hang and a crash are failures."""
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", *tests]
    command += [f"--timeout={TEST_LIMIT}", "--timeout-method=thread"]
    environment = {**os.environ, "UMEM_TEST_BACKENDS": "fake", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=RUN_LIMIT
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"all together (not done in {RUN_LIMIT} s)"
    if done.returncode == 0:
        return None
    text = done.stdout + done.stderr
    found = re.search(r"^(?:FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - |$)", text, re.MULTILINE)
    started = re.findall(
        r"^(tests/\S+::.*?)(?: (?:PASSED|FAILED|ERROR|SKIPPED).*)?$", done.stdout, re.MULTILINE
    )
    if found is None and not started:
        raise SystemExit(f"pytest did not run:\n{text}")
    name = found[1] if found else started[-1].strip()
    function = re.search(r"test_um_\w+\.c:\d+: (\w+):", text)  # of a C program
    notes = [f"`{function[1]}`"] if function else []
    if "+++ Timeout +++" in text or "TimeoutExpired" in text:
        notes.append("hangs")
    elif found is None:
        notes.append("crashes")
    return f"`{name.removeprefix('tests/')}`" + (f" ({', '.join(notes)})" if notes else "")


def fresh_tests(copy: Path, tests: Sequence[str]) -> str | None:
    """Builds the copy as it is and runs the tests: why the run cannot begin, or nothing."""
    messages = build(copy)
    if messages:
        return f"the tree does not build:\n{messages}"
    where = subprocess.run(
        [sys.executable, "-c", "import umem; print(umem.__file__)"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(where).is_relative_to(copy):
        return f"the copy is not what is imported, but {where}"
    failed = run_tests(copy, tests)
    return f"a test fails without any mutation: {failed}" if failed else None


def try_mutation(copy: Path, mutation: Mutation) -> str | None:
    """The test that fails under it, or None."""
    path = copy / mutation.file
    original = path.read_text()
    mutation.apply(copy)
    try:
        first = FIRST[mutation.rule]
        if first[0] == CORE:  # compiled by the test itself
            failed = run_tests(copy, [CORE])
            if failed:
                return failed
        messages = build(copy)
        if messages:
            raise SystemExit(f"{mutation}: does not compile\n{messages}")
        return run_tests(copy, first) or run_tests(copy, TESTS)
    finally:
        path.write_text(original)


def line_of(mutation: Mutation) -> str:
    """The beginning of the mutation's line in the results; the test follows."""
    what = mutation.what.replace("|", "\\|")
    return f"| {mutation.rule} | `{mutation.file.removeprefix('src/')}` | {what} | "


def write_results(tried: list[Mutation], killed: dict[Mutation, str]) -> None:
    mutations, unseen = read_table()
    earlier = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    lines = [
        INTRO,
        "| rule | file | what is taken out | the test that fails |",
        "|---|---|---|---|",
    ]
    for mutation in mutations:
        begin = line_of(mutation)
        if mutation in killed:
            lines.append(f"{begin}{killed[mutation]} |")
        elif mutation not in tried:
            lines += [line for line in earlier if line.startswith(begin)]
    lines += ["", "## What no test shows", ""]
    lines += [f"* `{entry['file'].removeprefix('src/')}`: {entry['what']}" for entry in unseen]
    RESULTS.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", metavar="PATTERN", help="a regular expression over rule, file and description"
    )
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="copies of the tree that work side by side"
    )
    parser.add_argument("--list", action="store_true", help="say what there is and run nothing")
    options = parser.parse_args()
    mutations, _ = read_table()
    for mutation in mutations:
        count = mutation.count(ROOT)
        if count != 1:
            raise SystemExit(f"{mutation}: the old text occurs {count} times")
    if options.only:
        mutations = [m for m in mutations if re.search(options.only, str(m))]
    if options.list:
        print(*mutations, sep="\n")
        return 0
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(options.jobs):
        copy_tree(COPIES / str(number))
        copies.put(COPIES / str(number))

    #: what has to pass without a mutation; of a few only what is tried first, since the rest takes minutes
    healthy = sorted({test for m in mutations for test in FIRST[m.rule]}) if options.only else TESTS

    def judge(mutation: Mutation | None) -> str | None:
        """The test that fails, or None; without a mutation, what is wrong with the tree as it is."""
        begin = time.monotonic()
        copy = copies.get()
        failed = try_mutation(copy, mutation) if mutation else fresh_tests(copy, healthy)
        copies.put(copy)
        print(
            f"{mutation or 'as it is'} | {failed or 'PASSES'} | {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        return failed

    with ThreadPoolExecutor(options.jobs) as pool:
        problem, *outcomes = pool.map(judge, [None, *mutations])
    if problem:
        raise SystemExit(problem)
    killed = {
        mutation: failed for mutation, failed in zip(mutations, outcomes, strict=True) if failed
    }
    survivors = len(mutations) - len(killed)
    print(f"{len(mutations)} mutations, {survivors} survive")
    write_results(mutations, killed)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
