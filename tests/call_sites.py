"""The places in src/ that call the driver: listed from the source, and told from the address of a call that was made.

All calls go through the table of um_driver.h: `driver->mem_free(ptr)`, or `UM_CUDA_CALL(cuda, err, mem_free, ptr)`. The
extension carries line numbers, so an address in it is a line, and the line a call.
"""

from __future__ import annotations

import bisect
import collections
import functools
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).resolve().parent.parent / "src"

#: members of um_driver that are no calls
DATA = {"library", "version", "device_count", "path"}

#: a call by macro, a member of the table (but for its address, where it is filled), a call of the look-up function that fills the table
MENTION = re.compile(
    r"\bUM_CUDA_CALL\(\s*\w+,[^,]*,\s*(?P<macro>\w+)|(?<!&)\bdriver->(?P<member>\w+)(?P<next>\(| [!=]= NULL)?|\bfinder->(?P<finder>v[12])\("
)


class Site(NamedTuple):
    file: str  # below src/
    function: str
    first: int  # lines of the call
    last: int
    symbol: str
    dropped: bool  # the result is ignored: there is a (void)

    def __str__(self) -> str:
        return f"src/{self.file}:{self.first} {self.function}: {self.symbol}"


def symbols() -> dict[str, str]:
    """The driver's name of each field of the table."""
    text = (SRC / "driver" / "um_driver_calls.h").read_text()
    return dict(re.findall(r'^UM_DRIVER_CALL\((\w+), "(\w+)"', text, re.MULTILINE))


def without_comments(text: str) -> str:
    """Blanks instead, so that positions stay."""
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def end_of_call(text: str, at: int) -> int:
    """Where the parenthesis closes that is the first after `at`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, at):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError("unbalanced parentheses")


def sites_of(path: Path) -> list[Site]:
    text = without_comments(path.read_text())
    names = symbols()
    newlines = [match.start() for match in re.finditer("\n", text)]
    functions = [
        (m.start(), m[1]) for m in re.finditer(r"^\w[^;={}]*?(\w+)\([^;{}]*\{$", text, re.M)
    ]
    found = []
    for match in MENTION.finditer(text):
        member = match["member"]
        if member in DATA or (match["next"] or "").endswith("NULL"):
            continue
        start = match.start()
        first = bisect.bisect_left(newlines, start) + 1
        if member and match["next"] is None:
            raise ValueError(f"{path}:{first}: {match[0]} is neither called nor compared with NULL")
        symbol = "cuGetProcAddress" if match["finder"] else names[match["macro"] or member]
        last = bisect.bisect_left(newlines, end_of_call(text, start)) + 1
        function = functions[bisect.bisect_right(functions, (start, "")) - 1][1]
        dropped = re.search(r"\(void\)(\w+->)*$", text[:start]) is not None
        file = path.relative_to(SRC).as_posix()
        found.append(Site(file, function, first, last, symbol, dropped))
    return found


@functools.cache
def all_sites() -> list[Site]:
    paths = sorted([*SRC.glob("driver/*.c"), *SRC.glob("backend/*.c")])
    return [site for path in paths for site in sites_of(path)]


def lines_of(addresses: Iterable[str]) -> dict[str, tuple[str, int]]:
    """File and line of "object+0x1234" places, each of which is where a call returns to."""
    by_object = collections.defaultdict(list)
    for address in addresses:
        name, _, offset = address.rpartition("+")
        by_object[name].append((address, int(offset, 16) - 1))  # - 1: in the call, not behind it
    found = {}
    for name, places in by_object.items():
        command = ["addr2line", "-e", name, *(hex(offset) for _, offset in places)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for (address, _), line in zip(places, out.splitlines(), strict=True):
            file, _, number = line.split(" ")[0].rpartition(":")
            found[address] = file, int(number) if number.isdigit() else 0
    return found


class Record:
    """Which calls failed, with which codes, and whether anybody was told."""

    def __init__(self) -> None:
        self.failed: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
        self.noticed: set[tuple[str, str]] = set()

    def note(self, fake, code: int, noticed: bool) -> None:
        """Of the call that the fake driver failed last."""
        symbol = fake.last_failed()
        if symbol is not None:
            self.failed[fake.last_failed_at(), symbol].add(code)
            if noticed:
                self.noticed.add((fake.last_failed_at(), symbol))

    def dumps(self) -> str:
        """For another process; one line."""
        return json.dumps(
            [[*call, list(codes), call in self.noticed] for call, codes in self.failed.items()]
        )

    def add(self, text: str) -> None:
        for at, symbol, codes, noticed in json.loads(text):
            self.failed[at, symbol].update(codes)
            if noticed:
                self.noticed.add((at, symbol))


def sites_at(calls: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Site]:
    """The site of each (address, symbol); KeyError with all that are at none."""
    calls = set(calls)
    lines = lines_of(address for address, _ in calls)
    found, unknown = {}, []
    for address, symbol in calls:
        file, line = lines[address]
        here = [
            site
            for site in all_sites()
            if file.endswith("src/" + site.file)
            and site.first <= line <= site.last
            and site.symbol == symbol
        ]
        if len(here) == 1:
            found[address, symbol] = here[0]
        else:
            unknown.append(f"{symbol} from {address}, {file}:{line}: {here}")
    if unknown:
        raise KeyError("\n".join(unknown))
    return found
