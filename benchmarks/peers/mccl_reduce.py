"""How long does one plain MindSpore AllReduce take over MCCL, for each message size?

Run by msrun, one process a rank; rank 0 writes one JSON line to standard output or to --out.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import ops
from mindspore.communication import get_group_size, get_rank, init
from numpy.typing import NDArray

FLOAT_BYTES = 4

Reduce = Callable[[ms.Tensor], ms.Tensor]


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="4096,1048576,16777216,67108864", help="message sizes in bytes")
    parser.add_argument("--repeats", type=int, default=20, help="timed calls for each size")
    parser.add_argument("--warmup", type=int, default=3, help="untimed calls for each size")
    parser.add_argument("--threads", type=int, default=0, help="kernel threads; 0 leaves the default of MindSpore")
    parser.add_argument("--out", type=Path, default=None, help="file for the JSON line instead of standard output")
    return parser.parse_args()


def compiled_reduce() -> Reduce:
    """AllReduce as a graph of its own."""
    all_reduce = ops.AllReduce(ops.ReduceOp.SUM)

    def reduce(values: ms.Tensor) -> ms.Tensor:
        return all_reduce(values)

    compiled: Reduce = ms.jit(reduce)
    return compiled


def check_sum(result: NDArray[np.float32], ranks: int) -> None:
    """Refuse figures of a reduction that did not add up."""
    expected = ranks * (ranks + 1) / 2
    if not np.all(result == expected):
        raise ArithmeticError(f"AllReduce over {ranks} ranks gave {result.min()}..{result.max()}, not {expected}")


def time_size(reduce: Reduce, size: int, repeats: int, warmup: int) -> list[float]:
    """Seconds of each timed call on this rank; a tiny AllReduce before each call lines the ranks up."""
    values = ms.Tensor(np.full(size // FLOAT_BYTES, get_rank() + 1, dtype=np.float32))
    barrier = ms.Tensor(np.ones(1, dtype=np.float32))
    seconds = []
    for call in range(warmup + repeats):
        reduce(barrier).asnumpy()
        started = time.perf_counter()
        result = reduce(values).asnumpy()
        elapsed = time.perf_counter() - started
        if call >= warmup:
            seconds.append(elapsed)
    check_sum(result, get_group_size())
    return seconds


def write_line(report: dict[str, object], out: Path | None) -> None:
    """Hand the report over as one JSON line."""
    line = json.dumps(report) + "\n"
    if out is None:
        sys.stdout.write(line)
        sys.stdout.flush()
    else:
        out.write_text(line, encoding="utf-8")


def main() -> None:
    """Time every size, and report from rank 0."""
    options = parse_options()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    if options.threads:
        ms.device_context.cpu.op_tuning.threads_num(options.threads)
    init("mccl")
    reduce = compiled_reduce()
    sizes = [int(size) for size in options.sizes.split(",")]
    seconds = {str(size): time_size(reduce, size, options.repeats, options.warmup) for size in sizes}
    if get_rank() == 0:
        report = {"ranks": get_group_size(), "threads": options.threads or None, "mindspore": ms.__version__}
        write_line({**report, "seconds": seconds}, options.out)


if __name__ == "__main__":
    main()
