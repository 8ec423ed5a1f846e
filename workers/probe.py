"""Does this rank compute what the job's first rank computed, and on what do its bits depend?

The probe runs step 0, shard 0 on the state as built, applies it, and takes it back; it doubles as the warm-up compile.
The numeric class names what the bits depend on. It must not train.
"""

import hashlib
import os
import platform
from pathlib import Path

import numpy as np

from workers.errors import ProgramError
from workers.feed import Feed
from workers.model import Model, versions
from workers.phases import PhasePage
from workers.sampling import Sampling
from workers.state import Array, State, sha256_of
from workers.step import Clock, Step

FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_tile", "asimd", "sve")
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE")
"""Variables by which the libraries below MindSpore and numpy choose other instructions than the CPU's best."""
SEEDED_ITEMS = 64


def probe(step: Step, state: State, phases: PhasePage) -> dict[str, str]:
    """Compute and apply step 0, shard 0; return digests of initial weights, ids, gradient and result; undo it."""
    model = step.model
    before = state.copy()
    initial = state.weights_sha256()
    # The first run compiles, and may move the parameters' memory; the two after it must agree.
    _one_shard(step, phases)
    model.refuse_stateful_random()
    _refuse_undeclared(model, before)
    state.write(before)
    first = _one_shard(step, phases)
    gradient = _one_shard(step, phases)
    if gradient != first:
        raise ProgramError("the same shard of the same step gave two different gradients: the program draws random "
                           "numbers of its own, or keeps a state that is not a parameter")  # fmt: skip
    step.apply()
    model.bind()
    _refuse_detached(model)
    result = sha256_of(state.arrays)
    state.write(before)
    # What the probe computed is no training: seconds and shards are counted from here.
    step.clock = Clock()
    ids = hashlib.sha256(step.sampling.ids(0, 0).tobytes()).hexdigest()
    return {"initial_weights": initial, "sample_ids": ids, "gradient": gradient, "result": result}


def _one_shard(step: Step, phases: PhasePage) -> str:
    computed = step.compute(0, (0, 1), phases, lambda: None)
    total = hashlib.sha256()
    shards = step.sampling.occupied(0)
    for node, flat in computed.sums.items():
        np.copyto(step.model.reduced, flat)
        total.update(repr((node, shards)).encode() + flat.tobytes())
    step.release(list(computed.sums.values()))
    record = computed.records[0]
    for section in step.model.layout.sections:
        divisor = {"gradient": record.weight, "mean": float(record.samples)}.get(section.kind, 1.0)
        step.model.reduced[section.begin : section.end] /= np.float32(divisor)
    return total.hexdigest()


def _refuse_undeclared(model: Model, before: dict[str, Array]) -> None:
    model.bind()
    changed = [name for name, value in before.items() if not np.array_equal(value, model.views[name], equal_nan=True)]
    if changed:
        raise ProgramError(
            f"a forward pass changes {', '.join(changed)}, which nobody declared; name it in buffers={{...}} as "
            "'mean', 'sum' or 'max'"
        )


def _refuse_detached(model: Model) -> None:
    detached = model.detached()
    if detached:
        raise ProgramError(f"the graph no longer uses the memory of {', '.join(detached)}")


def data_digest(feed: Feed, seed: int) -> str:
    """Return a digest of the dataset: its length, and types, shapes and bytes of 64 seeded items."""
    drawn = np.random.Generator(np.random.Philox(key=seed)).integers(0, feed.length, SEEDED_ITEMS)
    total = hashlib.sha256(str(feed.length).encode())
    for index in drawn.tolist():
        for part in feed.sample(index):
            total.update(f"{index}|{part.dtype}|{part.shape}|".encode() + np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def code_digest(code: Path) -> str:
    """Return a digest of the code folder: names and bytes of its files, compiled ones left out."""
    total = hashlib.sha256()
    for path in sorted(code.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(path.relative_to(code).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def numeric_class(code: Path, feed: Feed, sampling: Sampling, threads: int) -> dict[str, str]:
    """Return what the bits of this job depend on, part by part."""
    fingerprint = getattr(feed.dataset, "fingerprint", None)
    return {
        "device": f"CPU {_cpu_model()}",
        "instructions": _instructions(),
        **versions(),
        "threads": str(threads),
        "mode": "graph",
        "code": code_digest(code),
        "data": str(fingerprint()) if callable(fingerprint) else data_digest(feed, sampling.seed),
    }


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), platform.machine())


def _cpu_model() -> str:
    return _cpuinfo("model name")


def _instructions() -> str:
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return " ".join([platform.machine(), *(flag for flag in FLAGS if flag in flags), *limits])
