"""For how long does a save stop training, beside mindspore.save_checkpoint, and how much does its write slow?"""

import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.report import Report, median, options, p95

SIZES = {"50 MB": 50, "500 MB": 500}
WIDTH = 1024


def measure(channel: Connection, megabytes: int, repeats: int) -> None:
    """In a process of its own: seconds blocked a save for each way, a step's seconds without and beside a write."""
    import mindspore as ms
    import numpy as np
    from mindspore import Parameter, Tensor, nn

    from workers.checkpoint import Save, Saver
    from workers.storage import open_storage

    ms.set_device("CPU")

    class Weights(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            count = megabytes * (1 << 20) // (4 * WIDTH * WIDTH)
            parts = [
                Parameter(Tensor(np.full((WIDTH, WIDTH), index, np.float32)), name=f"w{index}")
                for index in range(count)
            ]
            self.parts = ms.ParameterTuple(parts)

    network = Weights()
    state = {item.name: item.asnumpy() for item in network.parts}
    left, right = np.ones((512, 512), np.float32), np.ones((512, 512), np.float32)

    def step() -> float:
        began = time.perf_counter()
        for _ in range(4):
            left @ right
        return time.perf_counter() - began

    found: dict[str, list[float]] = {name: [] for name in ("Muster", "whole", "plain", "async", "quiet", "beside")}
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(folder)
        for turn in range(repeats):
            saver = Saver(storage, lambda save, number: None)
            found["quiet"] += [step() for _ in range(20)]
            began = time.perf_counter()
            saver.begin(Save("bench", turn, 1, 0, 1, {}), state)
            found["Muster"].append(time.perf_counter() - began)
            thread = saver._thread
            while thread is not None and thread.is_alive():
                found["beside"].append(step())
            saver.wait()
            found["whole"].append(time.perf_counter() - began)
            for name, is_async in (("plain", False), ("async", True)):
                target = Path(folder) / f"{name}-{turn}.ckpt"
                began = time.perf_counter()
                ms.save_checkpoint(network, str(target), async_save=is_async)
                found[name].append(time.perf_counter() - began)
                if is_async:
                    ms.train.serialization._ckpt_async = None
                    time.sleep(3.0 * megabytes / 500)
            for path in Path(folder).rglob("*"):
                if path.is_file():
                    path.unlink()
    channel.send(found)


def run(megabytes: int, repeats: int) -> dict[str, list[float]]:
    """Measure in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(theirs, megabytes, repeats))
    process.start()
    found: dict[str, list[float]] = ours.recv()
    process.join()
    return found


def main() -> int:
    """Measure both sizes."""
    chosen = options(__doc__)
    columns = (
        "state",
        "Muster blocked ms",
        "p95",
        "until durable ms",
        "save_checkpoint ms",
        "async ms",
        "step beside a write",
    )
    report = Report("checkpoint", columns)
    for name, megabytes in SIZES.items():
        found = run(megabytes, 10 if chosen.full else 4)
        mid = {key: 1000 * median(values) for key, values in found.items() if values}
        slower = mid.get("beside", mid["quiet"]) / mid["quiet"]
        report.row(
            name,
            mid["Muster"],
            1000 * p95(found["Muster"]),
            mid["whole"],
            mid["plain"],
            mid["async"],
            f"× {slower:.2f}",
        )
        report.figures[name] = mid | {"slow_down": slower}
    return report.end(chosen.check)


if __name__ == "__main__":
    sys.exit(main())
