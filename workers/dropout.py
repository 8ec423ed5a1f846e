"""What replaces MindSpore's dropout, whose engine lives in the kernel and cannot be reset?

A counter-based hash of (key, element); the key is a hash of (seed, step, shard, layer), written in place before each
shard. It must not keep a state of its own.
"""

import hashlib
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

GOLDEN = np.int32(0x9E3779B9 - (1 << 32))
MIX_1 = np.int32(0x85EBCA6B - (1 << 32))
MIX_2 = np.int32(0xC2B2AE35 - (1 << 32))


class HashDropout(nn.Cell):  # type: ignore[misc]
    """Dropout with probability `p` whose mask is a pure function of its key (murmur3's finalizer over the elements)."""

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        self.p = p
        self.scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
        self.floor = Tensor(np.array([-(1 << 31) + int(p * (1 << 32))], dtype=np.int64).astype(np.int32))
        self.key = Parameter(Tensor(np.zeros(1, np.int32)), name=f"dropout_key_{layer}", requires_grad=False)
        self.golden = Tensor(np.array([GOLDEN]))
        self.mix_1 = Tensor(np.array([MIX_1]))
        self.mix_2 = Tensor(np.array([MIX_2]))
        # Shifts of int32 drag the sign along; the masks make them the logical shifts that the hash needs.
        self.s16, self.low16 = Tensor(np.array([16], np.int32)), Tensor(np.array([0xFFFF], np.int32))
        self.s13, self.low19 = Tensor(np.array([13], np.int32)), Tensor(np.array([0x7FFFF], np.int32))

    def construct(self, x: Tensor) -> Tensor:
        """Zero a share `p` of the elements of `x` and scale the rest by 1 / (1 - p); the identity outside training."""
        if not self.training or self.p == 0.0:
            return x
        size = 1
        for length in x.shape:
            size = size * length
        h = ops.arange(0, size).astype(ms.int32) * self.golden + self.key
        h = ops.bitwise_xor(h, ops.bitwise_and(ops.bitwise_right_shift(h, self.s16), self.low16)) * self.mix_1
        h = ops.bitwise_xor(h, ops.bitwise_and(ops.bitwise_right_shift(h, self.s13), self.low19)) * self.mix_2
        h = ops.bitwise_xor(h, ops.bitwise_and(ops.bitwise_right_shift(h, self.s16), self.low16))
        kept = (h >= self.floor).astype(x.dtype).reshape(x.shape)
        return x * kept * self.scale


def swap(network: nn.Cell) -> tuple[HashDropout, ...]:
    """Replace every nn.Dropout below `network` by a HashDropout, numbered in the order of the cells' names."""
    found: list[HashDropout] = []
    for cell in list(network.cells_and_names()):
        owner = cell[1]
        for name, child in list(owner.name_cells().items()):
            if type(child) is nn.Dropout:
                swapped = HashDropout(_rate(child), len(found))
                found.append(swapped)
                _put(owner, name, swapped)
                # Placing a cell renames its parameters after the attribute, which is not unique among blocks.
                swapped.key.name = f"dropout_key_{len(found) - 1}"
            elif isinstance(child, HashDropout) and child not in found:
                found.append(child)
    return tuple(found)


def _rate(cell: nn.Dropout) -> float:
    if getattr(cell, "p", None) is not None:
        return float(cell.p)
    return 1.0 - float(cell.keep_prob)


def _put(owner: nn.Cell, name: str, cell: HashDropout) -> None:
    if isinstance(owner, nn.SequentialCell):
        owner[list(owner.name_cells()).index(name)] = cell
        owner.cell_list = list(owner._cells.values())
    elif isinstance(owner, nn.CellList):
        owner[int(name)] = cell
    else:
        setattr(owner, name, cell)


def keys(seed: int, step: int, shard: int, layers: Sequence[HashDropout]) -> list[np.int32]:
    """Return one 32-bit key per layer for (seed, step, shard)."""
    drawn: list[np.int32] = []
    for layer in range(len(layers)):
        text = f"dropout|{seed}|{step}|{shard}|{layer}".encode()
        drawn.append(np.frombuffer(hashlib.blake2b(text, digest_size=4).digest(), dtype=np.int32)[0])
    return drawn
