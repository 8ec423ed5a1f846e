"""What can be done from a shell?

Each command is one call of the SDK and one way to show its answer: a table, or JSON with --json. Exit codes: 0 done,
1 the followed job failed or was cancelled, 2 wrong usage, 3 the API refused, 4 it does not answer.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from api.client import Client, MusterError, NotReachable, read_spec
from api.follow import follow
from api.show import job_text, table
from service import supervisor
from service.settings import Settings, load_settings
from workers.bundle import BundleError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Muster: elastic training for MindSpore on Ray.")
out = Console()
err = Console(stderr=True)

HOME = "MUSTER_HOME"
Job = Annotated[str, typer.Argument(help="the job's id")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
REFUSED, AWAY, JOB_FAILED = 3, 4, 1
READY_LIMIT = 90.0


def home() -> Path:
    """Return the home folder: MUSTER_HOME, or .muster in the user's home."""
    return Path(os.environ.get(HOME) or Path.home() / ".muster").resolve()


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command whose refusals become one line and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except MusterError as error:
            err.print(f"refused ({error.status}): {error.detail}", markup=False)
            raise typer.Exit(REFUSED) from error
        except (BundleError, ValueError, FileNotFoundError) as error:
            err.print(f"refused: {error}", markup=False)
            raise typer.Exit(REFUSED) from error
        except NotReachable as error:
            err.print(str(error), markup=False)
            raise typer.Exit(AWAY) from error

    app.command(name=function.__name__)(guarded)
    return guarded


def show(rows: list[dict[str, Any]], columns: str, as_json: bool) -> None:
    """Print rows as a table of the named columns, or whole as JSON."""
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        out.print(table(rows, columns.split()))


@command
def up(
    cpus: Annotated[float | None, typer.Option(help="CPUs that ranks may take (default: all)")] = None,
    port: Annotated[int, typer.Option(help="port of the API (default: a free one)")] = 0,
    foreground: Annotated[bool, typer.Option(help="stay in the foreground")] = False,
) -> None:
    """Start Ray, the controller and the API on this machine."""
    folder = home()
    if supervisor.is_up(folder) is not None:
        out.print(f"already up: {load_settings(folder).url}", markup=False)
        return
    settings = supervisor.prepare(Settings(home=folder, cpus=cpus, api_port=port))
    if foreground:
        supervisor.become(folder)
    supervisor.start_detached(folder)
    with Client.of_home(folder) as client:
        if not supervisor.wait_until(client.is_ready, READY_LIMIT):
            err.print(f"not ready after {READY_LIMIT:g} s; see {settings.logs}", markup=False)
            raise typer.Exit(AWAY)
    out.print(f"Muster is up: {settings.url}  (home {folder}, tokens in *.token, logs in logs/)", markup=False)


@command
def down() -> None:
    """Stop all of it; jobs go on from their newest checkpoints at the next `up`."""
    folder = home()
    pid = supervisor.is_up(folder)
    if pid is None:
        out.print("not up")
        return
    if not supervisor.stop(pid):
        err.print(f"the supervisor (process {pid}) did not end", markup=False)
        raise typer.Exit(AWAY)
    out.print("down")


@command
def submit(
    spec: Annotated[Path, typer.Argument(help="a job.yaml or .json, or a folder with a job.yaml", exists=True)],
    code: Annotated[Path | None, typer.Option(help="the code folder (default: where the spec is)")] = None,
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="watch it to its end")] = False,
    dry_run: Annotated[bool, typer.Option(help="check only")] = False,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="change a field")] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job."""
    body, beside = read_spec(spec)
    for change in changes or []:
        name, _, value = change.partition("=")
        body[name] = json.loads(value)
    with Client.of_home(home()) as client:
        done = client.submit(body, code or beside, dry_run)
        if as_json:
            print(json.dumps(done))
        else:
            out.print("acceptable" if dry_run else done["id"], markup=False)
        if follow_it and done["id"] is not None:
            ended = follow(client, done["id"], out)
            raise typer.Exit(0 if ended["phase"] == "SUCCEEDED" else JOB_FAILED)


@command
def jobs(as_json: AsJson = False) -> None:
    """List the newest jobs."""
    with Client.of_home(home()) as client:
        show(client.jobs(), "id name phase ranks generation step steps_total epoch reason", as_json)


@command
def status(job: Job, as_json: AsJson = False) -> None:
    """Show one job."""
    with Client.of_home(home()) as client:
        found = client.job(job)
        if as_json:
            print(json.dumps(found, indent=2))
        else:
            out.print(job_text(found), markup=False)
            show(client.rows(job, "generations"), "number state hosts from_step ended_step outcome why", False)
            show(client.rows(job, "ranks"), "rank first_shard end_shard pid node state", False)


@command
def events(job: Job, after: int = 0, as_json: AsJson = False) -> None:
    """Tell the job's story."""
    with Client.of_home(home()) as client:
        show(client.rows(job, "events", after=after), "id at generation kind text", as_json)


@command
def scale(job: Job, ranks: Annotated[str, typer.Argument(help='a number, or "auto"')], as_json: AsJson = False) -> None:
    """Change the number of ranks while the job trains."""
    with Client.of_home(home()) as client:
        found = client.scale(job, int(ranks) if ranks.isdigit() else ranks)
        print(json.dumps(found)) if as_json else out.print(job_text(found), markup=False)


@command
def cancel(job: Job, as_json: AsJson = False) -> None:
    """End a job."""
    with Client.of_home(home()) as client:
        found = client.cancel(job)
        print(json.dumps(found)) if as_json else out.print(job_text(found), markup=False)


@command
def nodes(as_json: AsJson = False) -> None:
    """List the cluster's nodes."""
    with Client.of_home(home()) as client:
        show(client.nodes(), "name id is_alive total ranks seen", as_json)


def main() -> None:
    """Process entry."""
    app()


if __name__ == "__main__":
    main()
