"""How long does a canonical reduce take, beside MCCL's plain AllReduce in the same run?"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np

from benchmarks.group import Ranges, run_group
from benchmarks.peers.msrun import run_patiently
from benchmarks.report import Report, median, options, p95
from workers.collectives.host import HostGroup
from workers.collectives.tree import TreeReduce
from workers.layout import lay_out
from workers.protocol import Header, ShardRecord
from workers.reduction import cover

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "16 MB": 16 << 20, "64 MB": 64 << 20}
SCRIPT = str(Path(__file__).parent / "peers" / "mccl_reduce.py")


def reduce_seconds(group: HostGroup, ranges: Ranges, size: int, shards: int, repeats: int) -> list[float]:
    """Seconds of each reduce on this rank, the ranks lined up before each; the sum is checked."""
    layout = lay_out([("values", "gradient", (size // 4,))])
    tree = TreeReduce(group, layout, ranges)
    begin, end = ranges[group.rank]
    mine, result = {}, layout.empty()
    for node in cover(shards, begin, end):
        flat = layout.empty()
        flat[:] = sum(shard + 1 for shard in range(*node))
        mine[node] = flat
    records = tuple(ShardRecord(shard, 1, 0.0, 1.0, b"", {}) for shard in range(begin, end))
    header = Header(0, 0, 1, False, False, b"", records)
    seconds = []
    for _ in range(repeats + 2):
        tree.talk(header)
        # The owner adds into its own partial sums; what they hold afterwards does not matter to the time.
        began = time.perf_counter()
        totals = tree.collect(header, shards, mine)
        tree.finish(header, shards, mine, totals, result)
        seconds.append(time.perf_counter() - began)
        if len(seconds) == 1 and not np.all(result[: size // 4] == np.float32((shards + 1) / 2)):
            raise ArithmeticError(f"the reduce gave {result[:3]}")
    return seconds[2:]


def ours(ranks: int, shards: int, size: int, repeats: int) -> list[float]:
    """Seconds of each reduce: the slowest rank's."""
    results = run_group(ranks, shards, reduce_seconds, size, shards, repeats)
    return [max(each) for each in zip(*results, strict=True)]


def mccl(ranks: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each AllReduce over MCCL, by size."""
    sizes = ",".join(str(size) for size in SIZES.values())
    args = ["--repeats", str(repeats), "--sizes", sizes]
    found: dict[str, list[float]] = run_patiently(SCRIPT, ranks, args, timedelta(minutes=2))["seconds"]
    return found


def main() -> int:
    """Interleave ours and MCCL."""
    chosen = options(__doc__)
    rounds, repeats = (5, 30) if chosen.full else (2, 10)
    report = Report("reduce", ("size", "ranks", "shards", "Muster ms", "p95", "MCCL ms", "p95", "times faster"))
    found: dict[tuple[str, int, int], list[float]] = {}
    peer: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for ranks, shards in ((2, 2), (4, 4), (3, 8)):
            for name, size in SIZES.items():
                found.setdefault((name, ranks, shards), []).extend(ours(ranks, shards, size, repeats))
            if ranks != 3:
                for text, seconds in mccl(ranks, repeats).items():
                    name = next(name for name, size in SIZES.items() if size == int(text))
                    peer.setdefault((name, ranks), []).extend(seconds)
    for (name, ranks, shards), seconds in found.items():
        theirs = peer.get((name, ranks))
        mine = [1000 * item for item in seconds]
        cells: list[object] = [name, ranks, shards, median(mine), p95(mine)]
        if theirs:
            factor = median(theirs) * 1000 / median(mine)
            cells += [median(theirs) * 1000, p95(theirs) * 1000, factor]
            report.figures[f"{name} {ranks} ranks"] = {"ms": median(mine), "mccl_ms": median(theirs) * 1000}
            if ranks == 2 and name in ("1 MB", "16 MB"):
                report.goal(f"at least 4 × MCCL at {name} with 2 ranks", factor, factor >= 4)
        else:
            cells += ["-", "-", "-"]
            report.figures[f"{name} {ranks} ranks {shards} shards"] = {"ms": median(mine)}
        report.row(*cells)
    return report.end(chosen.check)


if __name__ == "__main__":
    sys.exit(main())
