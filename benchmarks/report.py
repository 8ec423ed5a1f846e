"""How does every benchmark report? A table, one JSON line with the machine, and with --check the goals missed."""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Json = dict[str, Any]


def options(question: str | None) -> argparse.Namespace:
    """Read the command line that all benchmarks share."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal of the issue is missed")
    parser.add_argument("--full", action="store_true", help="as many repeats as the goals are stated for")
    return parser.parse_args()


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile (the largest value of few)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def machine() -> Json:
    """Say what ran this."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    load = [round(value, 2) for value in os.getloadavg()]
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "load": load}


@dataclass
class Report:
    """Rows of figures, and the goals they are held against."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    figures: Json = field(default_factory=dict)
    goals: list[tuple[str, bool, str]] = field(default_factory=list)

    def row(self, *cells: object) -> None:
        """Add a row; floats are shown with three digits."""
        self.rows.append(tuple(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))

    def goal(self, text: str, value: float, is_met: bool) -> None:
        """State a goal of the issue and the figure found."""
        self.goals.append((text, is_met, f"{value:.3g}"))

    def end(self, is_checked: bool) -> int:
        """Print everything; 1 when goals are checked and one is missed."""
        table = Table(title=self.name, title_justify="left")
        for column in self.columns:
            table.add_column(column)
        for row in self.rows:
            table.add_row(*row)
        console = Console(width=160)
        console.print(table)
        for text, is_met, value in self.goals:
            console.print(f"{'met   ' if is_met else 'MISSED'}  {text}: {value}", markup=False, highlight=False)
        goals = [{"goal": text, "met": is_met, "found": value} for text, is_met, value in self.goals]
        line = {"benchmark": self.name, "machine": machine(), "figures": self.figures, "goals": goals}
        sys.stdout.write(json.dumps(line) + "\n")
        missed = [goal for goal in goals if not goal["met"]]
        if is_checked and missed:
            sys.stdout.write("".join(f"missed: {goal['goal']}: {goal['found']}\n" for goal in missed))
            return 1
        return 0
