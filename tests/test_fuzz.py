"""The fuzzer's harness on a fixed set of random inputs, so that it works when it is wanted (`make fuzz`)."""

import random

import pytest

from fuzz.fuzz_importers import Harness

INPUTS = 1500


def test_objects_that_lie(umem, backend, request):
    fake = request.getfixturevalue("fake") if backend == "fake" else None
    harness = Harness(umem, fake)
    try:
        source = random.Random(1)
        for number in range(INPUTS):
            data = source.randbytes(source.randrange(64))
            try:
                harness.run(data)
            except BaseException:
                pytest.fail(f"input {number}: {data!r}", pytrace=True)
    finally:
        harness.close()
