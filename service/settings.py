"""Where does this installation keep its things, and how is it reached?

One folder holds everything of a one-machine installation. It must not open or start anything.
"""

import hashlib
import json
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict

ROOT = Path(__file__).resolve().parent.parent
"""Where our packages are: on the import path of every process we start."""
ROLES = ("user", "operator")


def service_mark(home: Path) -> str:
    """Return what tells this installation's processes from those of others."""
    return hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:12]


class Settings(BaseModel):
    """What `muster up` fixed; kept in `settings.json` of the home folder, without secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path
    api_port: int = 0
    ray_address: str = ""
    cpus: float | None = None
    resources: dict[str, float] = {}

    @property
    def database_url(self) -> str:
        """SQLAlchemy's address of the main database."""
        return f"sqlite:///{self.home / 'muster.db'}"

    @property
    def metrics_url(self) -> str:
        """SQLAlchemy's address of the bulk database."""
        return f"sqlite:///{self.home / 'metrics.db'}"

    @property
    def storage(self) -> Path:
        """Bundles, checkpoints, end records."""
        return self.home / "storage"

    @property
    def scratch(self) -> Path:
        """Working folders of ranks."""
        return self.home / "scratch"

    @property
    def ray_folder(self) -> Path:
        """Where Ray keeps its session; short, since sockets' paths are bounded."""
        return Path(tempfile.gettempdir()) / f"muster-ray-{service_mark(self.home)}"

    @property
    def logs(self) -> Path:
        """What the services write."""
        return self.home / "logs"

    @property
    def url(self) -> str:
        """Where the API listens."""
        return f"http://127.0.0.1:{self.api_port}"

    def save(self) -> None:
        """Write settings.json."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "settings.json").write_text(self.model_dump_json(indent=2))


def load_settings(home: Path) -> Settings:
    """Read settings.json of a home folder. FileNotFoundError when nothing is up there."""
    return Settings.model_validate(json.loads((home / "settings.json").read_text()))


def read_token(home: Path, role: str) -> str:
    """Return the token of a role ('user' or 'operator')."""
    return (home / f"{role}.token").read_text().strip()
