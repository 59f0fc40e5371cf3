"""Log lines for programs, and human-readable ones."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from diloco_operator.operator.endpoints import Address
from diloco_operator.operator.logs import LogFormat, about_job, set_up

log = logging.getLogger("diloco_operator.somewhere")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(format: LogFormat = "json", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    set_up(format, level, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_object_with_time_level_and_message() -> None:
    stream = written()
    log.warning("two\nlines of %s", "ünïcode")
    [line] = lines(stream)
    assert (line["level"], line["logger"], line["msg"]) == ("warning", "diloco_operator.somewhere", "two\nlines of ünïcode")
    assert line["time"].endswith("Z")
    assert "job" not in line


def test_what_is_logged_about_a_job_carries_it_also_from_tasks_that_were_started_for_it() -> None:
    stream = written()

    async def later() -> None:
        log.info("later")

    async def scenario() -> None:
        with about_job("ns", "lm"):
            log.info("now", extra={"unit": "v5p-0"})
            task = asyncio.create_task(later())
        log.info("outside")
        await task

    asyncio.run(scenario())
    now, outside, from_task = lines(stream)
    assert (now["job"], now["unit"]) == ("ns/lm", "v5p-0")
    assert "job" not in outside
    assert from_task["job"] == "ns/lm"


def test_an_exception_comes_with_its_traceback_in_one_line() -> None:
    stream = written()
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    [line] = lines(stream)
    assert "ValueError: broken" in line["error"]


def test_text_is_human_readable() -> None:
    stream = written("text")
    with about_job("ns", "lm"):
        log.error("broken", extra={"unit": "v5p-0"})
    assert " ERROR job=ns/lm unit=v5p-0 broken\n" in stream.getvalue()


def test_less_than_the_level_is_not_written() -> None:
    stream = written(level="warning")
    log.info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        (":8080", Address("", 8080)),
        ("[::1]:80", Address("::1", 80)),
        ("0", None),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["8080", "host:", "host:99999", "::1:80", "host:http", ""])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        Address.parse(text)
