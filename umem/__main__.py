"""`python -m umem info [--json]` and `python -m umem demo`."""

from __future__ import annotations

import sys

_USAGE = """\
usage: python -m umem info [--json]   what umem found on this machine
       python -m umem demo            train a classifier on one array that NumPy and PyTorch share
"""


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    match arguments:
        case ["info"]:
            from umem import _info

            print(_info.report())
            return 0
        case ["info", "--json"]:
            import json

            import umem

            print(json.dumps(umem.info(), indent=2))
            return 0
        case ["demo"]:
            from umem import _demo

            return _demo.main()
        case ["-h" | "--help"]:
            print(_USAGE, end="")
            return 0
        case _:
            print(_USAGE, end="", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
