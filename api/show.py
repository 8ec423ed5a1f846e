"""How do rows look in a terminal?"""

from typing import Any

from rich.table import Table

Json = dict[str, Any]


def table(rows: list[Json], columns: list[str]) -> Table:
    """Return a table of the named columns."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*[cell(row.get(column)) for column in columns])
    return shown


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.4g}"
        case list():
            return ",".join(str(item) for item in value)
        case dict():
            return " ".join(f"{name}={cell(item)}" for name, item in value.items())
        case str() if len(value) == 64:
            return value[:12] + "…"
        case _:
            return str(value)


def job_text(job: Json) -> str:
    """Return a job as a few lines."""
    lines = [
        f"{job['name']} ({job['id']}): {job['phase']} — {job['reason']}",
        f"step {job['step']}/{job['steps_total'] or '?'}  epoch {job['epoch']}  samples {job['samples']}  "
        f"ranks {job['ranks']}  generation {job['generation']}",
    ]
    if job["metrics"]:
        lines.append("  ".join(f"{name} {cell(value)}" for name, value in sorted(job["metrics"].items())))
    if job["result"]:
        lines.append(f"weights_sha256 {job['result']['weights_sha256']}")
    if job["failure"] and job["failure"].get("traceback"):
        lines.append(job["failure"]["traceback"])
    return "\n".join(lines)
