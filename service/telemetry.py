"""How do service processes log? One JSON line an event, to standard error."""

import structlog


def log_to_stderr(part: str) -> None:
    """Configure structlog for a service process."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(part=part)
