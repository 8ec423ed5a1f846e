"""A small character-level GPT (two blocks of width 128, context 128) on the text of `pydoc_data.topics`."""

from pydoc_data.topics import topics

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

CONTEXT = 128
WIDTH = 128
HEADS = 4
BLOCKS = 2


def text():
    """Return the help topics, joined in the order of their names."""
    return "\n".join(topics[name] for name in sorted(topics))


def encoded():
    """Return (training codes, held-out codes, size of the alphabet)."""
    whole = text()
    alphabet = {letter: code for code, letter in enumerate(sorted(set(whole)))}
    codes = np.array([alphabet[letter] for letter in whole], dtype=np.int32)
    border = len(codes) * 9 // 10
    return codes[:border], codes[border:], len(alphabet)


class Windows:
    """Windows of CONTEXT + 1 characters, one every CONTEXT characters."""

    def __init__(self, codes):
        self.codes = codes

    def __len__(self):
        return (len(self.codes) - 1) // CONTEXT

    def __getitem__(self, index):
        window = self.codes[index * CONTEXT : index * CONTEXT + CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Cell):
    """Causal attention and a feed-forward layer, each behind a layer normalisation."""

    def __init__(self, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,))
        self.norm2 = nn.LayerNorm((WIDTH,))
        self.mix = nn.Dense(WIDTH, 3 * WIDTH)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.up = nn.Dense(WIDTH, 4 * WIDTH)
        self.down = nn.Dense(4 * WIDTH, WIDTH)
        self.gelu = nn.GELU()
        self.drop1 = nn.Dropout(p=dropout)
        self.drop2 = nn.Dropout(p=dropout)
        self.mask = Tensor(np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1))
        self.scale = (WIDTH // HEADS) ** -0.5

    def construct(self, x):
        batch = x.shape[0]
        mixed = self.mix(self.norm1(x)).reshape(batch, CONTEXT, 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
        query, key, value = mixed[0], mixed[1], mixed[2]
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * self.scale + self.mask
        seen = ops.matmul(ops.softmax(scores, -1), value).transpose(0, 2, 1, 3).reshape(batch, CONTEXT, WIDTH)
        x = x + self.drop1(self.out(seen))
        return x + self.drop2(self.down(self.gelu(self.up(self.norm2(x)))))


class Network(nn.Cell):
    """Embeddings, blocks, and a projection to the alphabet."""

    def __init__(self, alphabet, dropout):
        super().__init__()
        self.letters = nn.Embedding(alphabet, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.SequentialCell(*[Block(dropout) for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, alphabet, has_bias=False)
        self.positions = Tensor(np.arange(CONTEXT, dtype=np.int32))

    def construct(self, codes):
        x = self.letters(codes) + self.places(self.positions)
        return self.head(self.norm(self.blocks(x)))


def loss(logits, targets):
    """Return (summed loss, number of characters)."""
    flat = logits.reshape(-1, logits.shape[-1])
    summed = ops.cross_entropy(flat, targets.reshape(-1), reduction="sum")
    return summed, ops.cast(targets.shape[0] * targets.shape[1], ms.float32)


def sums(logits, targets):
    """The mean loss of each window, summed."""
    flat = logits.reshape(-1, logits.shape[-1])
    return ops.cross_entropy(flat, targets.reshape(-1), reduction="sum") / CONTEXT


def rates(highest, warmup, steps):
    """One learning rate a step: up in a line, down along a cosine to a tenth."""
    step = np.arange(steps)
    down = 0.55 + 0.45 * np.cos(np.pi * np.clip((step - warmup) / (steps - warmup), 0, 1))
    return (highest * np.minimum((step + 1) / warmup, down)).tolist()


def build(ctx):
    training, held_out, alphabet = encoded()
    rate = rates(float(ctx.params["learning_rate"]), int(ctx.params["warmup"]), int(ctx.params["steps"]))
    clip = float(ctx.params.get("clip", 1.0))

    def clipped(gradients):
        return ops.clip_by_global_norm(gradients, clip)

    return ctx.Program(
        network=Network(alphabet, float(ctx.params.get("dropout", 0.1))),
        loss=loss,
        optimizer=lambda parameters: nn.Adam(parameters, learning_rate=rate),
        on_gradients=clipped,
        dataset=Windows(training),
        evaluate=ctx.Evaluation(Windows(held_out), ("loss",), sums),
    )
