"""How does an error become an answer? RFC 9457 problem details, naming field, value and remedy where there is one."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from service.errors import Conflict, NotFound, ServiceError
from workers.bundle import BundleError

MEDIA = "application/problem+json"
TITLES = {
    400: "The request cannot be understood",
    401: "No valid token",
    403: "Not allowed",
    404: "Not found",
    405: "This method is not for this path",
    409: "Conflict with the present state",
    413: "Too large",
    415: "Wrong media type",
    422: "The request is not acceptable",
    503: "Not ready",
}


class Problem(Exception):
    """An answer other than success, thrown where it is found."""

    def __init__(self, status: int, detail: str, errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, list(errors)


def answer(status: int, detail: str, errors: Sequence[dict[str, Any]] = ()) -> JSONResponse:
    """Return the problem document."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
    }
    if errors:
        body["errors"] = list(errors)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(body, status, headers, MEDIA)


def field_errors(error: ValidationError | RequestValidationError) -> list[dict[str, Any]]:
    """Return one {field, value, problem} per refused field."""
    found = []
    for item in error.errors():
        place = [str(part) for part in item["loc"] if part not in ("body", "query", "path")]
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = "there is no such field; see /v1/schema/job for those there are"
        found.append({"field": ".".join(place) or "(whole)", "value": _shown(item.get("input")), "problem": text})
    return found


def _shown(value: Any) -> str | int | float | None:
    """Return the value as JSON and UTF-8 can carry it: no NaN, no infinity, no lone surrogate."""
    match value:
        case float() if not isfinite(value):
            return str(value)
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case bool() | int() | float() | None:
            return value
        case _:
            return None


def in_words(errors: Sequence[dict[str, Any]]) -> str:
    """Return field errors as one line."""
    return "; ".join(_in_words(item["field"], item["value"], item["problem"]) for item in errors)


def _in_words(field: str, value: Any, problem: str) -> str:
    return f"{field}: {problem}" if value is None else f"{field} is {value!r}: {problem}"


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> JSONResponse:
        return answer(error.status, error.detail, error.errors)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = field_errors(error)
        is_json = not any(item["type"] == "json_invalid" for item in error.errors())
        return answer(422 if is_json else 400, in_words(errors), errors)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail))

    @app.exception_handler(BundleError)
    async def _bundle(_: Request, error: BundleError) -> JSONResponse:
        return answer(422, str(error), [{"field": "bundle", "value": None, "problem": str(error)}])

    @app.exception_handler(ServiceError)
    async def _service(_: Request, error: ServiceError) -> JSONResponse:
        match error:
            case NotFound():
                return answer(404, str(error))
            case Conflict():
                return answer(409, str(error))
            case _:
                return answer(503, str(error))
