"""Log lines: JSON objects for programs, with the job and the unit that they are about, or human-readable text."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

_job: ContextVar[str] = ContextVar("job", default="")
"""The job that the current task works for. Tasks that it starts inherit it."""

type LogFormat = Literal["json", "text"]

_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "critical"}


@contextlib.contextmanager
def about_job(namespace: str, name: str) -> Iterator[None]:
    """Log lines inside the context are about this job, and so are the lines of tasks that it starts."""
    token = _job.set(f"{namespace}/{name}")
    try:
        yield
    finally:
        _job.reset(token)


def set_up(format: LogFormat, level: str, *, stream: TextIO | None = None) -> None:
    """Send the log of this process to `stream` (standard error). `level`: debug, info, warning or error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.addFilter(_add_job)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # probes and scrapes, every few seconds


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "msg"}` and, if they are known, `job`, `unit` and `error` (a traceback)."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": _LEVELS.get(record.levelno, record.levelname.lower()),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        for field in ("job", "unit"):
            if value := getattr(record, field, ""):
                entry[field] = value
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`2026-11-20T21:00:00.000Z INFO job=ns/lm unit=v5p-0 text`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        about = "".join(f" {field}={value}" for field in ("job", "unit") if (value := getattr(record, field, "")))
        text = f"{moment} {record.levelname}{about} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _add_job(record: logging.LogRecord) -> bool:
    if not hasattr(record, "job"):
        record.job = _job.get()
    return True
