"""How is one job watched from a terminal? A progress bar with phase, ranks and loss, and each new event above it."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from api.client import Client
from api.show import cell, job_text

Json = dict[str, Any]


def follow(client: Client, job: str, console: Console) -> Json:
    """Watch a job to its end and return it."""
    columns = (
        TextColumn("{task.fields[phase]:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ranks {task.fields[ranks]}  {task.fields[numbers]}"),
        TimeElapsedColumn(),
    )
    after = 0
    found: Json = {}
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=None, phase="WAITING", ranks=0, numbers="")
        for found in client.watch(job):
            for event in client.rows(job, "events", after=after):
                after = event["id"]
                progress.console.print(f"{event['at'][11:19]}  {event['kind']:<12} {event['text']}", markup=False)
            numbers = "  ".join(f"{name} {cell(value)}" for name, value in sorted(found["metrics"].items())[:3])
            progress.update(
                bar, completed=found["step"], total=found["steps_total"] or None, phase=found["phase"],
                ranks=found["ranks"], numbers=numbers,
            )  # fmt: skip
    console.print(job_text(found), markup=False)
    return found
