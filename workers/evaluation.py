"""How is a program evaluated so that the number of ranks leaves no trace?

Batches of a fixed size are dealt to fixed evaluation shards, whose sums travel as fp64 and are added along the tree. It
must not send.
"""

import hashlib

import numpy as np

from workers.errors import ProgramError
from workers.feed import Feed
from workers.model import Model
from workers.protocol import ShardRecord
from workers.sampling import deal


def evaluate(model: Model, shards: int, batch: int, mine: tuple[int, int]) -> tuple[ShardRecord, ...]:
    """Evaluate this rank's evaluation shards; each record's metrics are (sum, samples) by name."""
    wanted = model.program.evaluate
    if wanted is None:
        return ()
    feed = Feed(wanted.dataset, model.program, 0, training=False)
    batches = -(-feed.length // batch)
    dealt = deal(batches, shards)
    records = []
    for shard in range(*mine):
        sums, samples = [0.0] * len(wanted.names), 0
        for number in range(*dealt[shard]):
            ids = np.arange(number * batch, min((number + 1) * batch, feed.length), dtype=np.int64)
            values = model.evaluate(feed.fetch(ids, 0).arrays)
            if len(values) != len(wanted.names):
                raise ProgramError(f"evaluate gave {len(values)} sums for the names {wanted.names}")
            sums = [total + value for total, value in zip(sums, values, strict=True)]
            samples += len(ids)
        if samples:
            metrics = {name: (value, float(samples)) for name, value in zip(wanted.names, sums, strict=True)}
            digest = hashlib.sha256(f"evaluation|{shard}".encode()).digest()
            records.append(ShardRecord(shard, samples, 0.0, 0.0, digest, metrics))
    return tuple(records)
