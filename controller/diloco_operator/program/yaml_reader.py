"""YAML as Kubernetes reads it, of a bounded size: keys are strings, no key occurs twice, times stay strings, and all of it is JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml

MOST_BYTES = 64 << 20
"""Bytes of one file: the nodes of a large cluster, as kubectl prints them."""
MOST_CONFIG_MAP = 1 << 20
"""As much as a ConfigMap holds."""
MOST_NODES = 2_000_000
"""Values and keys of one file, with what aliases repeat."""
MOST_DEPTH = 100


class BadYaml(Exception):
    """A text that is refused. The message completes "FILE …"."""

    def __init__(self, message: str, document: int = 0, line: int = 0) -> None:
        self.message = message
        self.document = document
        """Number of the document, from 1; 0 for the whole file."""
        self.line = line
        """Number of the line, from 1; 0 if it is not known."""
        super().__init__(message)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file. Raises BadYaml, or OSError if it cannot be read."""
    with path.open("rb") as file:
        return decoded(file, most_bytes)


def decoded(file: BinaryIO, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of an open file, which may have no end. Raises BadYaml."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise BadYaml(f"has more than {most_bytes >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadYaml(f"is not UTF-8 text (byte {error.start}); save it as UTF-8", line=line) from error


def load(text: str) -> Any:
    """Return the content of the only document, or None if it is empty. Raises BadYaml."""
    contents = [content for _, content in documents(text)]
    if len(contents) > 1:
        raise BadYaml("has several documents; leave one")
    return contents[0] if contents else None


def load_file(path: Path, failure: type[Exception]) -> Any:
    """Return the content of a file that a ConfigMap may hold. Raises `failure`, which names the file."""
    try:
        return load(read_text(path, MOST_CONFIG_MAP))
    except OSError as error:
        raise failure(f"{path} cannot be read: {error}") from error
    except BadYaml as error:
        raise failure(f"{path} {error}") from error


def documents(text: str, *, most_nodes: int = MOST_NODES) -> Iterator[tuple[yaml.Node, Any]]:
    """Yield the root and the content of each document. Raises BadYaml."""
    _refuse_bombs(text, most_nodes)
    number = 0
    try:
        loader = _Loader(text)
        while loader.check_node():
            number += 1
            node = loader.get_node()
            assert node is not None
            content = _content(loader, node, number)
            yield node, content
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part)
        raise BadYaml(f"is not valid YAML: {message}", number or 1, mark.line + 1 if mark else 0) from error
    except yaml.reader.ReaderError as error:
        line = text.encode().count(b"\n", 0, error.position) + 1
        raise BadYaml(f"is not valid YAML: the character U+{_code(error.character):04X} may not be in it; remove it", line=line) from error


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character)


def _content(loader: _Loader, node: yaml.Node, number: int) -> Any:
    try:
        content = loader.construct_document(node)
        json.dumps(content, allow_nan=False)
    except (ValueError, TypeError, AttributeError, LookupError) as error:  # PyYAML raises any of these if a value does not fit its tag
        raise BadYaml(f"contains a value that JSON does not have: {error}", number) from error
    return content


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, if PyYAML was built with it: it is ten times as fast."""


def _refuse_bombs(text: str, most_nodes: int) -> None:
    """Raise BadYaml if the text is nested too deep, or would have too many values once aliases repeat theirs. This is found out before
    anything is made of the text. Syntax errors are left to the loader, which comes next."""
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    total = document = 0
    with contextlib.suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=_Parser):
            line = event.start_mark.line + 1 if event.start_mark else 0
            match event:
                case yaml.DocumentStartEvent():
                    document += 1
                    sizes.clear()
                case yaml.AliasEvent():
                    if any(anchor == event.anchor for anchor, _ in opened):
                        raise BadYaml(f"contains itself through the anchor {event.anchor}; write out what is meant", document, line)
                    total += sizes.get(event.anchor or "", 1)
                case yaml.ScalarEvent():
                    total += 1
                    if event.anchor:
                        sizes[event.anchor] = 1
                case yaml.CollectionStartEvent():
                    opened.append((event.anchor, total))
                    total += 1
                    if len(opened) > MOST_DEPTH:
                        raise BadYaml(f"is nested more than {MOST_DEPTH} levels deep", document, line)
                case yaml.CollectionEndEvent():
                    anchor, before = opened.pop()
                    if anchor:
                        sizes[anchor] = total - before
            if total > most_nodes:
                raise BadYaml(f"has more than {most_nodes:,} values, with what aliases repeat", document, line)


class _Loader(_Parser):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            # `<<` stands for keys of other mappings. The mapping's own keys may repeat them, and take precedence.
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = repr(key.value[:64]) if isinstance(key, yaml.ScalarNode) else "it"
                raise yaml.constructor.ConstructorError(None, None, f"a key must be a string; put {shown} in quotes", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value[:64]!r} occurs twice; remove one", key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


# Else `2026-01-01` in an annotation would become a date, which JSON does not have.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
