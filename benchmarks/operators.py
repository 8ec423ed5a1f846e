"""Which MindSpore operators and optimizers give the same bits, whatever the kernel threads and the process's past?

Each setting runs in a process of its own: threads 1 or MindSpore's default, fresh or after other training. `--write`
makes docs/operators.md out of what was found.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import Report, machine
from service.settings import ROOT

SETTINGS = {"1 thread": (1, False), "1 thread, used": (1, True), "default": (0, False), "default, used": (0, True)}
CALLS = 8
UPDATES = 5
HEAD = """# Operators and optimizers checked for equal bits

Made by `python -m benchmarks.operators --write`. Forward results and gradients of every float input (for optimizers:
the weights after five updates) are compared byte by byte over four processes: kernel threads 1 and MindSpore's
default, each fresh and after other training; within a process over {calls} calls. Equality at one thread is what
Muster's promise needs; the default is listed because users ask.
"""
Found = dict[str, dict[str, str]]


def child(threads: int, is_used: bool, target: Path) -> None:
    """Compute every case in this process, and write a digest for each."""
    import mindspore as ms

    from benchmarks.operator_cases import OPTIMIZERS, cases
    from workers.model import choose_threads

    if threads:
        choose_threads(threads)
    else:
        ms.set_device("CPU")
        ms.set_context(mode=ms.GRAPH_MODE)
    if is_used:
        _train_something()
    found: Found = {}
    for case in cases():
        found[f"operator {case.name}"] = _guarded(lambda case=case: _operator(case))
    for name, make in OPTIMIZERS.items():
        found[f"optimizer {name}"] = _guarded(lambda make=make: _optimizer(make))
    target.write_text(json.dumps(found))


def _guarded(compute: Any) -> dict[str, str]:
    try:
        result: dict[str, str] = compute()
    except Exception as error:  # noqa: BLE001 - an operator without a CPU kernel is a finding, not a failure
        lines = [line.strip() for line in str(error).splitlines() if any(letter.isalpha() for letter in line)]
        return {"error": (lines or [type(error).__name__])[0][:160]}
    return result


def _inputs(case: Any) -> list[Any]:
    import numpy as np
    from mindspore import Tensor

    seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:4], "big")
    draw = np.random.default_rng(seed)
    return [Tensor(draw.standard_normal(shape).astype(np.float32)) for shape in case.shapes]


def _operator(case: Any) -> dict[str, str]:
    import mindspore as ms
    from mindspore import nn, ops

    function = case.function

    def summed(*given: Any) -> Any:
        out = function(*given)
        # A plain sum would give every element the same gradient.
        return (out * ops.sin(ops.arange(0, out.size).astype(ms.float32)).reshape(out.shape)).sum()

    class Forward(nn.Cell):  # type: ignore[misc]
        def construct(self, *given: Any) -> Any:
            return function(*given)

    class Backward(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.both = ms.grad(summed, grad_position=tuple(range(len(case.shapes))))

        def construct(self, *given: Any) -> Any:
            return self.both(*given)

    forward, backward = Forward().set_train(), Backward().set_train()
    # Fresh inputs for each call: some operators write into theirs.
    digests = [(_digest(forward(*_inputs(case))), _digest(backward(*_inputs(case)))) for _ in range(CALLS)]
    if len(set(digests)) > 1:
        return {"error": "two calls in one process differ"}
    return {"forward": digests[0][0], "gradient": digests[0][1]}


def _optimizer(make: Any) -> dict[str, str]:
    import numpy as np
    from mindspore import Parameter, Tensor

    draw = np.random.default_rng(9)
    shapes = ((512, 256), (256,), (64, 16, 3, 3))
    weights = [
        Parameter(Tensor(draw.standard_normal(s).astype(np.float32)), name=f"w{i}") for i, s in enumerate(shapes)
    ]
    optimizer = make(weights)
    for _ in range(UPDATES):
        gradients = tuple(Tensor(draw.standard_normal(s).astype(np.float32)) for s in shapes)
        optimizer(gradients)
    return {"forward": _digest(tuple(weights)), "gradient": "-"}


def _digest(outputs: Any) -> str:
    total = hashlib.sha256()
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        total.update(output.asnumpy().tobytes())
    return total.hexdigest()


def _train_something() -> None:
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn, ops

    network = nn.SequentialCell(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dense(8 * 81, 5))
    network.set_train()
    optimizer = nn.Adam(network.trainable_params(), 0.01)

    def loss(x: Any, y: Any) -> Any:
        return ops.cross_entropy(network(x), y)

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    draw = np.random.default_rng(1)
    for _ in range(10):
        x = Tensor(draw.standard_normal((7, 3, 9, 9)).astype(np.float32))
        _, gradients = step(x, Tensor(draw.integers(0, 5, 7).astype(np.int32)))
        optimizer(gradients)


def run(threads: int, is_used: bool) -> Found:
    """Compute every case in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.operators",
            "--child",
            str(threads),
            str(int(is_used)),
            str(target),
        ]
        environment = os.environ | {"GLOG_v": "4", "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, cwd=folder, env=environment)
        found: Found = json.loads(target.read_text())
        return found


def verdicts(runs: dict[str, Found]) -> list[tuple[str, str, str, str]]:
    """Return (case, forward, gradient, remark) for every case."""
    rows = []
    first = next(iter(runs.values()))
    for name in first:
        errors = {found[name]["error"] for found in runs.values() if "error" in found[name]}
        if errors:
            rows.append((name, "fails", "fails", "; ".join(sorted(errors))))
            continue
        cells = []
        remarks = []
        for part in ("forward", "gradient"):
            groups: dict[str, list[str]] = {}
            for setting, found in runs.items():
                groups.setdefault(found[name][part], []).append(setting)
            cells.append("equal" if len(groups) == 1 else "differs")
            if len(groups) > 1:
                remarks.append(f"{part}: " + " ≠ ".join(" = ".join(group) for group in groups.values()))
        rows.append((name, cells[0], cells[1], "; ".join(remarks)))
    return rows


def write(rows: list[tuple[str, str, str, str]], path: Path) -> None:
    """Write the document."""
    made = machine()
    versions = subprocess.run(
        [sys.executable, "-c", "import mindspore, numpy; print(mindspore.__version__, numpy.__version__)"],
        capture_output=True, text=True, check=True, env=os.environ | {"GLOG_v": "4"},
    ).stdout.split()  # fmt: skip
    where = f"{made['cpu']}, {made['cores']} cores. MindSpore {versions[-2]}, numpy {versions[-1]}"
    lines = [HEAD.format(calls=CALLS), f"Machine: {where}. {datetime.now(UTC):%Y-%m-%d}.", ""]
    lines += ["| case | forward | gradient | remark |", "|---|---|---|---|"]
    lines += [*[f"| {' | '.join(row)} |" for row in rows], "", "## Failures", ""]
    failures = [row for row in rows if row[1] != "equal" or "differs" in row[2]]
    lines += [f"- **{name}**: {remark or forward}" for name, forward, _, remark in failures] or ["None."]
    path.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Process entry, of the parent and of each child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("THREADS", "USED", "TARGET"))
    parser.add_argument("--write", action="store_true", help="make docs/operators.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--full", action="store_true", help="the same as the default run")
    chosen = parser.parse_args()
    if chosen.child:
        child(int(chosen.child[0]), chosen.child[1] == "1", Path(chosen.child[2]))
        return 0
    began = time.monotonic()
    rows = verdicts({name: run(*setting) for name, setting in SETTINGS.items()})
    if chosen.write:
        write(rows, ROOT / "docs" / "operators.md")
    report = Report("operators", ("case", "forward", "gradient", "remark"))
    for row in rows:
        report.row(*row)
    equal = [name for name, forward, gradient, _ in rows if forward == "equal" and gradient == "equal"]
    operators = sum(name.startswith("operator") for name in equal)
    report.figures = {"cases": len(rows), "equal": len(equal), "seconds": round(time.monotonic() - began)}
    report.goal("operators equal in all settings, at least 40", operators, operators >= 40)
    report.goal("optimizers equal in all settings, at least 6", len(equal) - operators, len(equal) - operators >= 6)
    return report.end(chosen.check)


if __name__ == "__main__":
    sys.exit(main())
