"""The operator's configuration file.

    apiVersion: config.diloco.dev/v1alpha1
    kind: OperatorConfiguration
    progressInterval: 10s
    workers: 16

It has the fields of `reconcile.config.OperatorConfig` in camelCase, and `workers`, `concurrency`, `jobConcurrency`,
`watchOtherPods` and `clusters`.
Durations are written as in a job, `30s`, or as a number of seconds.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.alias_generators import to_camel

from diloco_operator.api.base import field_path
from diloco_operator.api.durations import Duration
from diloco_operator.api.names import CONFIG_API_VERSION, CONFIG_KIND
from diloco_operator.operator import RunConfig
from diloco_operator.program.yaml_reader import load_file
from diloco_operator.reconcile import OperatorConfig

_RUN_FIELDS = ("workers", "concurrency", "job_concurrency", "watch_other_pods", "clusters")


class BadConfiguration(Exception):
    """The file is not valid; the message says why, field by field."""


def load_configuration(path: Path | None) -> tuple[OperatorConfig, RunConfig]:
    """Return the settings of the file, with defaults for the rest, or for all if there is no file. Raises `BadConfiguration`."""
    if path is None:
        return OperatorConfig(), RunConfig()
    return read_configuration(load_file(path, BadConfiguration), str(path))


def read_configuration(content: object, where: str) -> tuple[OperatorConfig, RunConfig]:
    """Read the configuration from the content of a file; `where` names it in messages. Raises `BadConfiguration`."""
    if not isinstance(content, dict):
        raise BadConfiguration(f"{where} must be a map with apiVersion: {CONFIG_API_VERSION} and kind: {CONFIG_KIND}")
    try:
        read = _model().model_validate(content)
        values = {name: getattr(read, name) for name in type(read).model_fields if name not in ("api_version", "kind")}
        run = RunConfig(**{name: values.pop(name) for name in _RUN_FIELDS})
        return OperatorConfig(**values), run
    except ValidationError as error:
        lines = [f"  {field_path(each['loc'])}: {_text(each)}" for each in error.errors()]
        raise BadConfiguration("\n".join([f"{where}:", *lines])) from error
    except ValueError as error:
        raise BadConfiguration(f"{where}: {error}") from error


def _model() -> type[BaseModel]:
    fields: dict[str, Any] = {"api_version": (Literal[CONFIG_API_VERSION], ...), "kind": (Literal[CONFIG_KIND], ...)}
    for config, wanted in ((OperatorConfig, None), (RunConfig, _RUN_FIELDS)):
        types = get_type_hints(config)
        for each in dataclasses.fields(config):
            if wanted is None or each.name in wanted:
                # In OperatorConfig every float is a duration.
                kind = Annotated[Duration, Field(ge=0)] if types[each.name] is float else types[each.name]
                fields[each.name] = (kind, each.default)
    return create_model(CONFIG_KIND, __config__=ConfigDict(alias_generator=to_camel, extra="forbid"), **fields)


def _text(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field"
    text: str = error["msg"]
    return text.removeprefix("Value error, ")
