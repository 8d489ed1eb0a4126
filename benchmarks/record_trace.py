"""Records what a PyTorch inference loop allocates and frees, for replay on other allocators (pool.py).

    python benchmarks/record_trace.py [FILE]

The loop is a transformer encoder of 6 layers and a classifier over batches of 8 sentences of various
lengths, in torch.inference_mode on the CPU. PyTorch's profiler gives every call of its allocator,
temporaries inside of operators included. A line is `a ID BYTES` or `f ID`; ids are used again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

TRACE = Path(__file__).resolve().parent / "traces" / "transformer-inference.txt"

ITERATIONS = 50
BATCH = 8
WIDTH = 256
WORDS = 5000
CLASSES = 20


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=8, dim_feedforward=4 * WIDTH, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=6)
        self.head = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, CLASSES)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(words)).mean(dim=1)).softmax(-1)


def events(profiled: profile) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each allocation, (address, -bytes) of each free, in order of time."""

    def walk(nodes):
        for node in nodes:
            yield node
            yield from walk(node.children)

    tree = profiled.profiler.kineto_results.experimental_event_tree()
    found = [node for node in walk(tree) if node.typed[0].name == "Allocation"]
    for node in sorted(found, key=lambda node: node.start_time_ns):
        yield node.typed[1].ptr, node.typed[1].alloc_size


def lines(profiled: profile) -> Iterator[str]:
    ids: dict[int, int] = {}
    unused: list[int] = []
    for address, size in events(profiled):
        if size > 0:
            ids[address] = unused.pop() if unused else len(ids)
            yield f"a {ids[address]} {size}"
        elif address in ids:  # else it was allocated before the loop
            unused.append(ids.pop(address))
            yield f"f {unused[-1]}"
    for number in ids.values():  # what the loop leaves behind
        yield f"f {number}"


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else TRACE
    torch.manual_seed(0)
    model = Classifier().eval()
    lengths = torch.randint(16, 129, (ITERATIONS,)).tolist()
    with torch.inference_mode():
        model(torch.randint(WORDS, (BATCH, 128)))  # what is made once and kept
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            for length in lengths:
                answer = model(torch.randint(WORDS, (BATCH, length)))
            del answer
    text = "".join(line + "\n" for line in lines(profiled))
    header = (
        f"# torch {torch.__version__}: {ITERATIONS} batches of {BATCH} through 6 encoder layers\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + text)
    print(f"{path}: {len(text.splitlines())} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
