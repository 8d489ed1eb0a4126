"""Measuring, and the lines that come of it."""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable

MIB = 1 << 20


class Statement:
    """Code that is timed as it stands: to call a function around it would be a good part of the time."""

    def __init__(self, code: str, **names: object) -> None:
        self.timer = timeit.Timer(code, globals=names)

    def __call__(self) -> None:
        self.timer.timeit(1)


Candidates = dict[str, Callable[[], object]]


#: one factor for the length of everything: tests of the benchmarks themselves make it tiny
effort = 1.0


def scaled(count: int) -> int:
    """Of a number of turns, repeats or blocks what the effort asks for, at least one."""
    return max(1, round(count * effort))


def seconds_of(call: Callable[[], object], loops: int, settle: Callable[[], object]) -> float:
    start = time.perf_counter()
    if isinstance(call, Statement):
        call.timer.timeit(loops)
    else:
        for _ in range(loops):
            call()
    settle()
    return time.perf_counter() - start


def loops_for(call: Callable[[], object], seconds: float) -> int:
    """How many calls take about `seconds`."""
    loops = 1
    while True:
        took = seconds_of(call, loops, lambda: None)
        if took > seconds / 4 or loops >= 1 << 20:
            return max(1, int(loops * seconds / max(took, 1e-9)))
        loops *= 4


def measure(
    candidates: Candidates,
    settle: Callable[[], object] = lambda: None,
    turns: int = 15,
    seconds: float = 0.02,
) -> dict[str, float]:
    """Median microseconds a call for each candidate; `settle` ends a turn, inside its time."""
    turns = scaled(turns)
    seconds *= min(1.0, effort)
    loops = {}
    for name, call in candidates.items():
        call()
        settle()
        loops[name] = loops_for(call, seconds)
        settle()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(turns):
        for name, call in candidates.items():
            times[name].append(seconds_of(call, loops[name], settle) / loops[name] * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def median_of(turns: list[dict[str, float]]) -> dict[str, float]:
    """Of figures that were taken together in several turns, each one's median."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


class Report:
    """Collects lines: figures in µs a call, umem's ratio to a peer with the aim for it, and what has no figure."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def add(
        self,
        name: str,
        figures: dict[str, float],
        aims: dict[str, tuple[str, float | None]] | None = None,
        bytes_moved: int = 0,
        missing: dict[str, str] | None = None,
        note: str = "",
    ) -> None:
        """aims: peer -> ("time", most): umem's over the peer's; ("rate", least): likewise of calls or bytes in a time;
        ("microseconds", most) for a figure of its own. The bound None: the ratio only.
        missing: peer -> why it has no figure."""
        line: dict[str, object] = {"name": name, "microseconds": figures}
        if bytes_moved:
            line["gigabytes_per_second"] = {
                who: bytes_moved / us / 1e3 for who, us in figures.items()
            }
        ratios = {}
        for peer, (kind, bound) in (aims or {}).items():
            if peer not in figures:
                continue
            if kind == "microseconds":
                ratio = figures[peer]
            elif kind == "time":
                ratio = figures["umem"] / figures[peer]
            else:
                ratio = figures[peer] / figures["umem"]
            ratios[peer] = {"kind": kind, "ratio": ratio}
            if bound is not None:
                met = ratio >= bound if kind == "rate" else ratio <= bound
                ratios[peer] |= {"aim": bound, "met": met}
        line["ratios"] = ratios
        if missing:
            line["not available"] = missing
        if note:
            line["note"] = note
        self.lines.append(line)
        self.show(line)

    def add_count(self, name: str, value: float, most: float | None = None) -> None:
        """A figure that is no time."""
        line: dict[str, object] = {"name": name, "value": value}
        if most is not None:
            line |= {"aim": most, "met": value <= most}
        self.lines.append(line)
        said = "" if most is None else f"  (aim <= {most:g}{'' if value <= most else ', NOT MET'})"
        print(f"{name}\n    {value:41.3f}{said}")

    def missed(self) -> list[str]:
        """Names of the lines with an aim that was not met."""
        return [
            str(line["name"])
            for line in self.lines
            if not all(ratio.get("met", True) for ratio in [line, *line.get("ratios", {}).values()])
        ]

    @staticmethod
    def show(line: dict[str, object]) -> None:
        print(line["name"])
        rates = line.get("gigabytes_per_second", {})
        for who, us in line["microseconds"].items():
            rate = f"  {rates[who]:9.0f} GB/s" if rates else ""
            ratio = line["ratios"].get(who)
            said = ""
            if ratio:
                if ratio["kind"] != "microseconds":
                    said = f"  {ratio['kind']} ratio {ratio['ratio']:.3f}"
                if "aim" in ratio:
                    sign = ">=" if ratio["kind"] == "rate" else "<="
                    met = "" if ratio["met"] else ", NOT MET"
                    said += f" (aim {sign} {ratio['aim']:g}{met})"
            print(f"    {who:28s} {us:12.3f} us{rate}{said}")
        for who, reason in line.get("not available", {}).items():
            print(f"    {who:28s} not available: {reason}")
        if "note" in line:
            print(f"    {line['note']}")
