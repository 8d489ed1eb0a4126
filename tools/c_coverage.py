"""Branch coverage of the C code, summed over every object that a source was compiled into.

    python tools/c_coverage.py [--fail-under PERCENT] [--missing] FOLDER...

FOLDER holds objects that were compiled with --coverage (UMEM_COVERAGE=1) and what running them has
written beside them. A branch is one way out of a condition; it counts as covered when any object
took it. Only files below src/ count, inline functions of its headers too. $GCOV names another gcov.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SRC = Path("src").resolve()


def read(notes: Path) -> list[dict]:
    """What gcov knows of one object: a record per source file that is part of it."""
    gcov = os.environ.get("GCOV", "gcov")
    command = [gcov, "--json-format", "--stdout", "--branch-probabilities", str(notes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [file for line in done.stdout.splitlines() for file in json.loads(line)["files"]]


def collect(folders: list[Path]) -> dict[Path, dict[tuple, int]]:
    """How often each branch was taken: by file, then by function, line and place in the line."""
    notes = [path for folder in folders for path in sorted(folder.rglob("*.gcno"))]
    taken: dict[Path, dict[tuple, int]] = defaultdict(lambda: defaultdict(int))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file in (file for files in pool.map(read, notes) for file in files):
            path = Path(file["file"]).resolve()
            if not path.is_relative_to(SRC):
                continue
            for line in file["lines"]:
                where = (line["line_number"], line.get("function_name", ""))
                for place, branch in enumerate(line["branches"]):
                    taken[path][(*where, place)] += branch["count"]
    return taken


def row(name: str, branches: dict[tuple, int]) -> str:
    covered = sum(count > 0 for count in branches.values())
    percent = 100 * covered / len(branches)
    return f"{name:44}{len(branches):10}{len(branches) - covered:10}{percent:9.1f}%"


def missing(branches: dict[tuple, int]) -> str:
    lines = defaultdict(list)
    for (line, _, place), count in sorted(branches.items()):
        if count == 0:
            lines[line].append(str(place))
    return "    " + " ".join(f"{line}:{','.join(places)}" for line, places in lines.items())


def main() -> int:
    parser = argparse.ArgumentParser(description="Branch coverage of the C code.")
    parser.add_argument("--fail-under", type=float, default=0)
    parser.add_argument("--missing", action="store_true", help="list line:branch not taken")
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    taken = collect(options.folders)
    if not taken:
        sys.exit("no .gcno file of src/ found: build with UMEM_COVERAGE=1 and gcc")
    print(f"{'C':44}{'branches':>10}{'missed':>10}{'covered':>10}")
    for path, branches in sorted(taken.items()):
        print(row(path.relative_to(SRC.parent).as_posix(), branches))
        if options.missing and not all(branches.values()):
            print(missing(branches))
    together = {(path, *key): count for path in taken for key, count in taken[path].items()}
    print(row("TOTAL", together))
    percent = 100 * sum(count > 0 for count in together.values()) / len(together)
    if percent < options.fail_under:
        print(f"below {options.fail_under:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
