"""`python -m umem demo`: handwritten digits, one array, NumPy and PyTorch.

NumPy standardises the images in place and PyTorch trains on the same memory, on a GPU where there is
one. The weights are umem arrays too, so that NumPy prints them during the training without `.cpu()`.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

import umem

GOAL = 0.93  # test accuracy
EPOCHS = 60
HIDDEN = 64
TESTED = 360  # of 1,797 images


class Data(NamedTuple):
    images: umem.ndarray  # (n, 64) float32
    labels: umem.ndarray  # (n,) int64


def main() -> int:
    """Returns 0 when the classifier is good enough, 1 when it is not, 2 when a library is missing."""
    try:
        import sklearn.datasets as datasets
        import torch
    except ImportError as error:
        print(f"The demo needs {error.name}: pip install torch scikit-learn", file=sys.stderr)
        return 2
    info = umem.info()
    print(f"umem {info['version']}, {info['backend']} backend: {info['reason']}")
    on_gpu = info["backend"] == "cuda" and torch.cuda.is_available()

    data = load(datasets)
    standardise(data.images)
    images, labels = (as_tensor(torch, array, on_gpu) for array in data)
    print(f"\n{len(data.images)} handwritten digits in one array, seen by")
    if not same_addresses(data.images, images):
        return 1
    if on_gpu:
        move_to_gpu(data)

    weights = initial_weights()
    parameters = [torch.nn.Parameter(as_tensor(torch, array, on_gpu)) for array in weights]
    print(f"\ntraining on {images.device}; NumPy prints the weights and the loss PyTorch works on")
    train(torch, parameters, images[TESTED:], labels[TESTED:], weights, on_gpu)

    print("\nthe first layer's weights, seen by")
    if not same_addresses(weights[0], parameters[0]):
        return 1
    accuracy = test(data, weights)
    print(f"\naccuracy on {TESTED} digits never seen: {accuracy:.1%} (goal: {GOAL:.0%})")
    return 0 if accuracy >= GOAL else 1


def load(datasets: Any) -> Data:
    """The digits that scikit-learn ships, shuffled, in managed memory."""
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return Data(
        images=umem.asarray(digits.data[order], dtype=np.float32),
        labels=umem.asarray(digits.target[order], dtype=np.int64),
    )


def standardise(images: umem.ndarray) -> None:
    """NumPy gives each pixel mean 0 and deviation 1 over the training images, in place."""
    pixels = np.asarray(images)  # the same memory
    known = pixels[TESTED:]
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    np.subtract(pixels, mean, out=pixels)
    np.divide(pixels, np.where(deviation > 0, deviation, 1), out=pixels)


def as_tensor(torch: Any, array: umem.ndarray, on_gpu: bool) -> Any:
    """A tensor over the same memory."""
    if on_gpu or array.device == "cpu":
        return torch.as_tensor(array)
    return torch.from_dlpack(array.on("cpu"))  # umem has a GPU and this PyTorch does not


def same_addresses(array: umem.ndarray, tensor: Any) -> bool:
    """Prints where each library says the memory is."""
    addresses = {
        "umem": array.__array_interface__["data"][0],
        "NumPy": np.asarray(array).ctypes.data,
        f"PyTorch ({tensor.device})": tensor.data_ptr(),
    }
    for who, address in addresses.items():
        print(f"  {who:<18} at {address:#x}")
    same = len(set(addresses.values())) == 1
    if not same:
        print("these should be one address", file=sys.stderr)
    return same


def move_to_gpu(data: Data) -> None:
    """Moves the images to the GPU, and shows that they moved."""
    data.images.prefetch("cpu")
    umem.synchronize()
    print(f"\nthe images are here: {data.images.residency()}")
    umem.prefetch(data, "cuda")
    umem.synchronize()
    print(f"and after a prefetch: {data.images.residency()}")


def initial_weights() -> list[umem.ndarray]:
    """Two layers: weights and biases in managed memory."""
    random = np.random.default_rng(1)
    weights = []
    for inputs, outputs in ((64, HIDDEN), (HIDDEN, 10)):
        scale = np.sqrt(2 / inputs)
        weights += [
            umem.asarray(random.normal(0, scale, (inputs, outputs)), dtype=np.float32),
            umem.zeros(outputs, dtype=np.float32),
        ]
    return weights


def train(
    torch: Any,
    parameters: list[Any],
    images: Any,
    labels: Any,
    weights: list[umem.ndarray],
    on_gpu: bool,
) -> None:
    """Ordinary PyTorch. The loss of each epoch is kept in managed memory as well."""
    losses = umem.zeros(EPOCHS, dtype=np.float32)
    losses_of_torch = as_tensor(torch, losses, on_gpu)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        hidden = torch.relu(images @ parameters[0] + parameters[1])
        loss = torch.nn.functional.cross_entropy(hidden @ parameters[2] + parameters[3], labels)
        loss.backward()
        optimizer.step()
        losses_of_torch[epoch] = loss.detach()
        if epoch % 10 == 0 or epoch == EPOCHS - 1:
            # Only the elements shown are read, once the GPU has written them; no page moves.
            some = np.array2string(weights[0][20, :4], precision=4, sign=" ")
            print(f"  epoch {epoch:>2}  loss {losses[epoch]:.4f}  some weights {some}")


def test(data: Data, weights: list[umem.ndarray]) -> float:
    """Accuracy on the images held back, computed by NumPy from the weights PyTorch trained."""
    first, first_bias, second, second_bias = map(np.asarray, weights)
    hidden = np.maximum(np.asarray(data.images)[:TESTED] @ first + first_bias, 0)
    guesses = np.argmax(hidden @ second + second_bias, axis=1)
    return float(np.mean(guesses == np.asarray(data.labels)[:TESTED]))
