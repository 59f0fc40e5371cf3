"""Own commands within sentences and tables of the documents: the programs know their subcommands and options.

Placeholders stand in them, so they are read and not run; tests/cluster reads those of kubectl and Helm.
See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import click
import pytest
from builders.documents import PRESENT, inline_commands, words
from diloco_cli.diloco import main
from diloco_cli.kubectl import main as plugin
from diloco_operator.program import main as operator_main

CLICK: dict[str, click.Command] = {"diloco": main.main, "diloco-operator": operator_main.main, "kubectl diloco": plugin.main}


@pytest.mark.slow
def test_own_commands_have_these_subcommands_and_options() -> None:
    for page in PRESENT:
        for text in inline_commands(page, "diloco", "diloco-operator", "kubectl"):
            program, *rest = words(text)
            if program == "kubectl":
                if not rest or rest[0] != "diloco":
                    continue
                program, rest = "kubectl diloco", rest[1:]
            wrong = list(unknown(CLICK[program], rest))
            assert not wrong, f"{page}: `{text}`: {', '.join(wrong)}"


def unknown(command: click.Command, given: Sequence[str]) -> Iterator[str]:
    """What of a command line the program does not know."""
    context = click.Context(command)
    at = 0
    while isinstance(command, click.Group) and at < len(given) and not given[at].startswith("-"):
        if given[at].startswith("<"):  # a placeholder
            return
        found = [command.get_command(context, name.strip(",")) for name in given[at].split("|")]
        if None in found:
            yield f"no subcommand {given[at]}"
            return
        at, command = at + 1, found[-1] or command
    options = {name: param for param in command.get_params(context) for name in (*param.opts, *param.secondary_opts)}
    for word, value in pairwise([*given[at:], ""]):
        name, _, attached = word.partition("=")
        if not name.startswith("-"):
            continue
        if name not in options:
            yield f"no option {name}"
        elif isinstance(kind := options[name].type, click.Choice) and not (chosen := attached or value).isupper():  # a placeholder
            yield from (f"{name} takes no {each}" for each in chosen.split("|") if each not in kind.choices)


def test_what_does_not_exist_is_found() -> None:
    assert list(unknown(plugin.main, ["logs|lgos", "JOB"])) == ["no subcommand logs|lgos"]
    assert list(unknown(plugin.main, ["logs", "JOB", "UNIT", "--previos", "-f"])) == ["no option --previos"]
    assert list(unknown(plugin.main, ["status", "-o", "jsn"])) == ["-o takes no jsn"]
