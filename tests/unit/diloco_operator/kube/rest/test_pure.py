"""Lines of a stream, errors, paths, proxies."""

from __future__ import annotations

import itertools
import json

import pytest
from diloco_operator.kube.client import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    InternalError,
    Invalid,
    NotFound,
    Resource,
    Unavailable,
)
from diloco_operator.kube.rest.client import collection_path, object_path
from diloco_operator.kube.rest.errors import error_of_answer, retry_after
from diloco_operator.kube.rest.line_splitter import LineSplitter
from diloco_operator.kube.rest.proxy import proxy_of
from hypothesis import given
from hypothesis import strategies as st

PODS = Resource("", "v1", "Pod", "pods")
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
JOBS = Resource("diloco.dev", "v1alpha1", "DiLoCoJob", "dilocojobs")


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 200), max_size=10))
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + b"\n" for line in lines) + b"rest"
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    splitter = LineSplitter()
    found = [line for start, end in itertools.pairwise(places) for line in splitter.feed(text[start:end])]
    assert found == [line for line in lines if line.strip()]
    assert splitter.rest == b"rest"


def test_line_beyond_the_limit_is_an_error() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"123456789\n") == [b"123456789"]
    splitter.feed(b"12345678")
    with pytest.raises(ValueError, match="more than 10 bytes"):
        splitter.feed(b"9AB")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", ApiError),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", ApiError),
        (500, "InternalError", InternalError),
        (500, "ServerTimeout", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_status_becomes_the_error_of_its_code_and_reason(code: int, reason: str, kind: type[ApiError]) -> None:
    error = error_of_answer(code, json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "why"}).encode())
    assert type(error) is kind
    assert (error.code, error.reason, error.message) == (code, reason, "why")


def test_causes_are_reported_with_their_fields() -> None:
    causes = [{"reason": "FieldValueInvalid", "field": "spec.a", "message": "bad"}, {"message": "worse"}]
    error = error_of_answer(422, json.dumps({"kind": "Status", "code": 422, "details": {"causes": causes}}).encode())
    assert error.causes == [Cause("spec.a", "bad"), Cause("", "worse")]


def test_version_of_the_future_is_not_a_server_that_is_away() -> None:
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    error = error_of_answer(504, json.dumps({"kind": "Status", "code": 504, "reason": "Timeout", "details": details}).encode())
    assert type(error) is ApiError


def test_answer_of_another_server_is_quoted() -> None:
    error = error_of_answer(502, b"<html>no backend</html>")
    assert type(error) is Unavailable
    assert "no backend" in error.message
    assert "418" in error_of_answer(418, b"").message


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0", 0.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)]
)
def test_retry_after_is_seconds(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_paths() -> None:
    assert collection_path(PODS, "") == "/api/v1/pods"
    assert collection_path(JOBS, "ns") == "/apis/diloco.dev/v1alpha1/namespaces/ns/dilocojobs"
    assert object_path(NODES, "", "n") == "/api/v1/nodes/n"
    assert object_path(NODES, "ignored", "n") == "/api/v1/nodes/n"
    assert object_path(PODS, "ns", "p", "log") == "/api/v1/namespaces/ns/pods/p/log"
    assert object_path(PODS, "ns", "a b/c") == "/api/v1/namespaces/ns/pods/a%20b%2Fc"


@pytest.mark.parametrize(("namespace", "name"), [("ns", ""), ("", "p"), ("ns", ".."), ("..", "p")])
def test_path_without_a_proper_name_is_an_error(namespace: str, name: str) -> None:
    with pytest.raises(BadRequest):
        object_path(PODS, namespace, name)


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://api.example:6443", {}, ""),
        ("https://api.example:6443", {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://api.example:6443", {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("https://api.example:6443", {"HTTP_PROXY": "http://proxy:3128"}, ""),
        ("http://api.example", {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://proxy:3128"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://proxy:3128"}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://proxy:3128"}, ""),
    ],
)
def test_proxy_of_the_environment(server: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_of(server, environ) == proxy


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"),
    [
        ("https://10.96.0.1:443", "10.0.0.0/8", True),
        ("https://11.96.0.1:443", "10.0.0.0/8", False),
        ("https://10.96.0.1:443", "10.96.0.1", True),
        ("https://10.96.0.1:443", "10.96.0.1:443", True),
        ("https://10.96.0.1:443", "10.96.0.1:8443", False),
        ("https://api.example", "example", True),
        ("https://api.example", ".example", True),
        ("https://example", "example", True),
        ("https://notexample", "example", False),
        ("https://api.example", "other, API.example", True),
        ("https://api.example", "*", True),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://api.example", "10.0.0.0/99", False),
        ("https://api.example", "", False),
    ],
)
def test_no_proxy(server: str, no_proxy: str, direct: bool) -> None:
    assert (proxy_of(server, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": no_proxy}) == "") is direct
