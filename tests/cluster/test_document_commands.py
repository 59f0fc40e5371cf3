"""Commands within sentences and tables of the documents: the programs know their subcommands, options and resources.

Placeholders stand in them, so they are read and not run. See docs/decisions/0144-commands-of-documents.md.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import click
import pytest
from builders.control_plane import PROGRAMS, ControlPlane
from builders.documents import inline_commands, pages
from diloco_operator.cli import kubectl as plugin
from diloco_operator.cli import main, operator_main

CLICK: dict[str, click.Command] = {"diloco": main.main, "diloco-operator": operator_main.main, "kubectl diloco": plugin.main}
PAGES = [page for page in pages() if not page.startswith(("docs/decisions/", "docs/results/", "CHANGELOG.md"))]
"""The others are of their day."""
WITH_RESOURCE = {"get", "describe", "delete", "scale", "wait", "explain", "patch", "label", "annotate", "taint", "edit"}


def words(command: str) -> list[str]:
    """Without the signs of a synopsis: brackets around what may be left out, an ellipsis, quotes."""
    return re.sub(r"[\[\]…'\"]", " ", command).split()


@pytest.mark.parametrize("page", PAGES)
def test_own_commands_have_these_subcommands_and_options(page: str) -> None:
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


@cache
def help_of(program: str, *subcommands: str) -> str | None:
    """What `PROGRAM SUBCOMMANDS --help` prints; None: there is no such subcommand."""
    done = subprocess.run([PROGRAMS / program, *subcommands, "--help"], capture_output=True, text=True, check=False)
    usage = re.search(r"^Usage:\n  (.*)", done.stdout, re.MULTILINE)  # of its parent, where there is none
    return done.stdout if done.returncode == 0 and usage and usage[1].startswith(" ".join((program, *subcommands))) else None


@pytest.mark.parametrize("program", ["kubectl", "helm"])
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_kubectl_and_helm_have_these_subcommands_and_options(page: str, program: str) -> None:
    for text in inline_commands(page, program):
        _, *rest = words(text)
        if rest[0] == "diloco":
            continue
        shown = help_of(program, rest[0])
        assert shown is not None, f"{page}: `{text}`: {program} has no subcommand {rest[0]}"
        general = general_options() if program == "kubectl" else ""
        for option in (word.partition("=")[0] for word in rest if word.startswith("-")):
            known = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown + general)
            assert known, f"{page}: `{text}`: {program} {rest[0]} has no option {option}"


@cache
def general_options() -> str:
    return subprocess.run([PROGRAMS / "kubectl", "options"], capture_output=True, text=True, check=True).stdout


def test_the_resources_of_kubectl_commands_exist(control_plane: ControlPlane) -> None:
    control_plane.install_crd()
    listed = control_plane.kubectl("api-resources").stdout.splitlines()[1:]
    known = {name for line in listed for name in (line.split()[0], *(line.split()[1].split(",")), line.split()[-1].lower())}
    seen = 0
    for page in PAGES:
        for text in inline_commands(page, "kubectl"):
            _, subcommand, *rest = words(text)
            named = next((word for word in rest if not word.startswith("-")), None)
            if subcommand not in WITH_RESOURCE or named is None:
                continue
            seen += 1
            for resource in re.split(r"[/.]", named)[0].split(","):
                assert resource.removesuffix("s") in known or resource in known, f"{page}: `{text}`: no resource {resource}"
    assert seen > 5


def test_what_does_not_exist_is_found() -> None:
    assert list(unknown(plugin.main, ["logs|lgos", "JOB"])) == ["no subcommand logs|lgos"]
    assert list(unknown(plugin.main, ["logs", "JOB", "UNIT", "--previos", "-f"])) == ["no option --previos"]
    assert list(unknown(plugin.main, ["status", "-o", "jsn"])) == ["-o takes no jsn"]
    assert help_of("kubectl", "gett") is None
    assert help_of("helm", "isntall") is None
    assert help_of("helm", "install") is not None
