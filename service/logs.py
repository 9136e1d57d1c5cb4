"""Logging: one JSON object a line, on stderr, uvicorn's and the libraries' lines too.

Knows structlog and logging. Refuses to know what is worth a line. Each line of a request carries its id.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# What variables hold is people's records, and costs seconds to write out.
_WITHOUT_LOCALS = ExceptionDictTransformer(show_locals=False)


def configure(level: str) -> None:
    """Set logging up for the whole process; `level` is a name as of `logging`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_WITHOUT_LOCALS),
    ]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line a write: processes share files
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.INFO))
    for chatty in ("alembic", "py4j", "urllib3", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
