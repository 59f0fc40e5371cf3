"""Objects as YAML for people and for `kubectl apply`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml
from diloco_operator.kube.client import Obj


def yaml_text(objects: Iterable[Obj]) -> str:
    return "---\n".join(yaml.dump(obj, Dumper=_Dumper, sort_keys=False, width=120) for obj in objects)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a block, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
