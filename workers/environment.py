"""What environment does a rank get?

What is listed of its host's, then what the job's spec asks for, then what Muster needs. It must not start anything.
"""

from collections.abc import Mapping
from pathlib import Path

MARK = "MUSTER_HOST"
ALLOWED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE",
    "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME",
)  # fmt: skip
"""What a rank inherits; everything else, the service's secrets among it, stays outside."""
QUIET = {"GLOG_v": "3"}
"""What a spec may say otherwise."""
FIXED = {
    "PYTHONPATH": str(Path(__file__).resolve().parent.parent), "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
"""What equal bits, threads and imports rest on; a spec may not change it."""


def environment(outer: Mapping[str, str], chosen: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return a rank's environment: `outer` as far as allowed, what the spec has `chosen`, ours, and the mark."""
    kept = {name: outer[name] for name in ALLOWED if name in outer}
    return kept | QUIET | dict(chosen) | FIXED | {MARK: mark}
