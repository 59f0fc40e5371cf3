"""The base of all types of the API."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """camelCase in the API, snake_case here, and immutable."""

    # Unknown fields are ignored here: an operator must work with objects of a newer CRD. `diloco validate` refuses them.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, regex_engine="rust-regex", allow_inf_nan=False
    )


def field_path(location: Sequence[int | str]) -> str:
    """Write pydantic's location of a field in Kubernetes' notation: `spec.pools[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
