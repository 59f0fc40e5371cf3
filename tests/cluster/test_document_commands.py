"""Commands of kubectl and Helm within sentences and tables of the documents: the programs know their subcommands, options and resources.

Placeholders stand in them, so they are read and not run. See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache

import pytest
from builders.control_plane import PROGRAMS, ControlPlane
from builders.documents import PRESENT, inline_commands, words

# A landing changes documents, and this costs seconds.
pytestmark = pytest.mark.core

WITH_RESOURCE = {"get", "describe", "delete", "scale", "wait", "explain", "patch", "label", "annotate", "taint", "edit"}


@cache
def help_of(program: str, *subcommands: str) -> str | None:
    """What `PROGRAM SUBCOMMANDS --help` prints; None: there is no such subcommand."""
    done = subprocess.run([PROGRAMS / program, *subcommands, "--help"], capture_output=True, text=True, check=False)
    usage = re.search(r"^Usage:\n  (.*)", done.stdout, re.MULTILINE)  # of its parent, where there is none
    return done.stdout if done.returncode == 0 and usage and usage[1].startswith(" ".join((program, *subcommands))) else None


@pytest.mark.parametrize("program", ["kubectl", "helm"])
@pytest.mark.parametrize("page", PRESENT)
def test_commands_of_kubectl_and_helm_have_these_subcommands_and_options(page: str, program: str) -> None:
    for text in inline_commands(page, program):
        _, *rest = words(text)
        if rest[0] == "diloco":
            continue
        subcommand = subcommand_of(program, rest)
        shown = help_of(program, *subcommand)
        assert shown is not None, f"{page}: `{text}`: {program} has no subcommand {rest[0]}"
        general = general_options() if program == "kubectl" else ""
        for option in (word.partition("=")[0] for word in rest if word.startswith("-")):
            known = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown + general)
            assert known, f"{page}: `{text}`: {program} {' '.join(subcommand)} has no option {option}"


def subcommand_of(program: str, rest: list[str]) -> list[str]:
    """The first words after the program, such as `create token`. The first of them, if it has no such subcommand."""
    count = 1
    while count < len(rest) and help_of(program, *rest[: count + 1]) is not None:
        count += 1
    return rest[:count]


@cache
def general_options() -> str:
    return subprocess.run([PROGRAMS / "kubectl", "options"], capture_output=True, text=True, check=True).stdout


def test_the_resources_of_kubectl_commands_exist(control_plane: ControlPlane) -> None:
    control_plane.install_crd()
    listed = control_plane.kubectl("api-resources").stdout.splitlines()[1:]
    known = {name for line in listed for name in (line.split()[0], *(line.split()[1].split(",")), line.split()[-1].lower())}
    seen = 0
    for page in PRESENT:
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
    assert help_of("kubectl", "gett") is None
    assert help_of("helm", "isntall") is None
    assert help_of("helm", "install") is not None
