"""What does the API process do? Open the store and serve; it answers while Ray is down."""

import secrets

import uvicorn

from api.app import create_app
from api.auth import Doors, Role
from api.routes import Backend
from service.clock import utc_now
from service.settings import Settings, read_token
from service.store.engine import migrate, open_engine
from service.store.queries import Queries
from service.store.wishes import WishStore
from workers.storage import open_storage

ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


def new_job_id() -> str:
    """Return a new job's id: ten letters and digits that are not mistaken for each other."""
    return "".join(secrets.choice(ID_LETTERS) for _ in range(10))


def run_api(settings: Settings) -> int:
    """Serve on loopback until told to end."""
    engine, bulk = open_engine(settings.database_url), open_engine(settings.metrics_url, "NORMAL")
    migrate(engine, "truth")
    migrate(bulk, "bulk")
    storage = open_storage(str(settings.storage))
    backend = Backend(Queries(engine, bulk), WishStore(engine), storage, utc_now, new_job_id)
    tokens = {role: read_token(settings.home, role.value) for role in Role}
    names = frozenset(f"{name}:{settings.api_port}" for name in ("127.0.0.1", "localhost"))
    app = create_app(backend, Doors(tokens, names))
    uvicorn.run(app, host="127.0.0.1", port=settings.api_port, log_level="warning", timeout_graceful_shutdown=2)
    return 0
