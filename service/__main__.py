"""Which process of the service shall this one be?

Called as `python -m service supervisor|controller|api --home FOLDER`.
"""

import argparse
import sys
from pathlib import Path

from service.settings import load_settings
from service.telemetry import log_to_stderr


def main() -> int:
    """Process entry of all three."""
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("part", choices=("supervisor", "controller", "api"))
    parser.add_argument("--home", type=Path, required=True)
    chosen = parser.parse_args()
    settings = load_settings(chosen.home)
    log_to_stderr(chosen.part)
    # Each part imports only what it needs: the API never loads Ray, the supervisor neither Ray nor SQL.
    match chosen.part:
        case "supervisor":
            from service.supervisor import Supervisor

            return Supervisor(settings).run()
        case "controller":
            from service.controller import run_controller

            return run_controller(settings)
        case _:
            from api.server import run_api

            return run_api(settings)


if __name__ == "__main__":
    sys.exit(main())
