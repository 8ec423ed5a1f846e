"""How is the API put together? A composition root: settings and stores in, an ASGI app out."""

from fastapi import FastAPI

from api.auth import Doors, guard
from api.problems import install
from api.routes import Backend, router


def create_app(backend: Backend, doors: Doors) -> FastAPI:
    """Return the API over a backend, behind the doors."""
    app = FastAPI(title="Muster", version="0.1.0", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.state.backend = backend
    app.middleware("http")(guard(doors))
    install(app)
    app.include_router(router)
    return app
