"""How do the tests of the numbers train? With the rank processes of `workers.local`, as a user would."""

from pathlib import Path
from typing import Any

from service.settings import ROOT
from workers.local import LocalResult, read_spec, run_local

DIGITS, GPT = ROOT / "examples" / "digits", ROOT / "examples" / "topics_gpt"
WRAPPED = ROOT / "tests" / "programs" / "wrapped"


def train(code: Path, ranks: int, scratch: Path, **changes: Any) -> LocalResult:
    """Train a program of the examples to its end."""
    return run_local(read_spec(code) | changes, code, ranks, scratch)


def train_wrapped(code: Path, ranks: int, scratch: Path, *, wrap: dict[str, Any], **changes: Any) -> LocalResult:
    """Train the same program after something was done to its process."""
    spec = read_spec(code) | changes
    spec["params"] = spec.get("params", {}) | {"path": str(code / "program.py")} | wrap
    return run_local(spec, WRAPPED, ranks, scratch)
