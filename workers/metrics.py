"""What do the shards' records of one step say together?

Sums along the canonical tree, in 64 bits, so that a metric is the same for any number of ranks. It must not keep or
send them.
"""

import math

from workers.errors import LossNotFinite, PeerLost
from workers.protocol import Header, Plan, ShardRecord
from workers.reduction import tree_sum


def in_order(headers: tuple[Header, ...]) -> tuple[ShardRecord, ...]:
    """Return what all shards said, in the order of the shards."""
    return tuple(sorted((record for header in headers for record in header.shards), key=lambda item: item.shard))


def means(records: tuple[ShardRecord, ...], prefix: str = "") -> dict[str, float]:
    """Return each metric's weighted mean, both sums along the tree; a training step also has its loss."""
    found: dict[str, float] = {}
    if not prefix and records:
        loss, weight = tree_sum([item.loss for item in records]), tree_sum([item.weight for item in records])
        found["loss"] = loss / weight if weight else math.nan
    for name in sorted({name for record in records for name in record.metrics}):
        pairs = [record.metrics[name] for record in records if name in record.metrics]
        total, weight = tree_sum([pair[0] for pair in pairs]), tree_sum([pair[1] for pair in pairs])
        found[prefix + name] = total / weight if weight else math.nan
    return found


def refuse_not_finite(index: int, records: tuple[ShardRecord, ...], plan: Plan, rank: int) -> None:
    """End the step when a loss is not finite: the shard's own rank has the fault, for its peers it is lost."""
    for record in records:
        if not math.isfinite(record.loss):
            why = f"the loss of shard {record.shard} is {record.loss} in step {index + 1}"
            owner = next(member.rank for member in plan.members if member.begin <= record.shard < member.end)
            if owner == rank:
                raise LossNotFinite(why)
            raise PeerLost(owner, why)
