"""`python -m umem info`, `demo` and `bench`."""

from __future__ import annotations

import sys

_USAGE = """\
usage: python -m umem info [--json]   what umem found on this machine
       python -m umem demo            train a classifier on one array that NumPy and PyTorch share
       python -m umem bench replay FILE [--peer torch|cupy|rmm|numpy] [--repeat N]
                                      time the allocations that umem.record_allocations wrote
"""


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    match arguments:
        case ["info"] | ["info", "--json"]:
            return _info(as_json="--json" in arguments)
        case ["demo"]:
            from umem import _demo

            return _demo.main()
        case ["bench", *rest]:
            from umem import _bench

            return _bench.main(rest)
        case ["-h" | "--help"]:
            print(_USAGE, end="")
            return 0
        case _:
            print(_USAGE, end="", file=sys.stderr)
            return 2


def _info(as_json: bool) -> int:
    import json

    import umem
    from umem._info import report

    try:
        info = umem.info()
    except (
        RuntimeError,
        ValueError,
    ) as error:  # no usable driver, or a setting that makes no sense
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(info, indent=2) if as_json else report(info))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
