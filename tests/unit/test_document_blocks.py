"""No shell block of a document is lost: a scenario types it, or each of its commands is listed with a reason and checked here.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import image_plan
import page_files
import pytest
from builders.documents import NOT_TYPED, PRESENT, ROOT, SCENARIOS, SHELL, Block, fences, not_typed, pages, shell_blocks
from diloco_cli.commands.validate import check
from diloco_operator.api.names import API_VERSION

LANGUAGES = {"diff", SHELL, "text", "yaml", "python", "json", "dockerfile", "mermaid"}
"""Text is what a program prints."""
ASSIGNED = [name for names in SCENARIOS.values() for name in names]
# Every process collects this file, and bash reads each line of a block to find its commands: so only the blocks that have such a command.
REST = sorted(
    {
        command
        for block in shell_blocks().values()
        if any(map(not_typed, block.text.splitlines()))
        for command in block.commands
        if not_typed(command)
    }
)


def test_every_block_names_its_language() -> None:
    """One without could be a shell block that no test sees."""
    blocks = ((page, number, language) for page in pages() for language, _, _, number in fences(page))
    wrong = [f"{page}:{number}: ```{language}" for page, number, language in blocks if language not in LANGUAGES]
    assert not wrong, f"write one of {sorted(LANGUAGES)}"


def _indented_blocks(page: str) -> Iterator[str]:
    lines = re.sub(r"^(```|~~~).*?^\1$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    inside = ""
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith(" "):
            inside = line  # a list item, or anything else
        if line.startswith("    ") and not lines[number - 1].strip() and not re.match(r"[-*] |\d+\. ", inside):
            yield f"{page}: {line.strip()}"


def test_blocks_are_fenced() -> None:
    """Indented blocks look the same and name no language."""
    assert [block for page in pages() for block in _indented_blocks(page)] == [], f"fence these with ```{SHELL}"


@pytest.mark.slow
def test_whole_jobs_can_be_applied_as_they_stand(tmp_path: Path) -> None:
    """A block that begins with the API's version is a whole object: nothing in it is left to the reader."""
    file = tmp_path / "job.yaml"
    for page in PRESENT:
        for language, text, _, number in fences(page):
            if language == "yaml" and text.startswith(f"apiVersion: {API_VERSION}\n"):
                file.write_text(text)
                assert check((str(file),)).problems == [], f"{page}:{number}"


@pytest.mark.slow
def test_a_scenario_types_every_block_or_says_why_not() -> None:
    typed = {name for name, block in shell_blocks().items() if not all(map(not_typed, block.commands))}
    assert sorted(typed - set(ASSIGNED)) == [], "add these to SCENARIOS of tests/builders/documents.py, and type them there"
    assert sorted(set(ASSIGNED) - set(shell_blocks())) == [], "these blocks are in SCENARIOS and in no document"
    assert [name for name, count in Counter(ASSIGNED).items() if count > 1] == []


def test_the_list_of_commands_that_are_not_typed_is_short_and_used() -> None:
    assert {beginning for beginning in NOT_TYPED if not any(command.startswith(beginning) for command in REST)} == set()
    assert len(NOT_TYPED) < 10


@pytest.mark.parametrize("command", REST)
def test_what_is_not_typed_names_files_targets_and_options_that_exist(command: str) -> None:
    written = page_files.of(ROOT / "docs" / "your-program.md")
    program, *arguments = shlex.split(command, comments=True)
    match program, arguments:
        case "make", ["images", "REGISTRY=$REGISTRY", "PUSH=1", *chosen] | ["images", "LOAD=1", *chosen]:
            targets = {variant.target for variant in image_plan.VARIANTS}
            assert {name for each in chosen for name in each.removeprefix("TARGETS=").split()} <= targets
        case "make", [target]:
            subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
        case "docker", ["build", "-t", image, folder]:
            assert f"image: {image}\n" in written[f"{folder}/job.yaml"]
            assert f"{folder}/Dockerfile" in written
        case "docker", ["build", *options, "."]:
            file = ROOT / options[options.index("-f") + 1]
            declared = set(re.findall(r"^ARG (\w+)", file.read_text(), re.MULTILINE))
            given = {options[at + 1].partition("=")[0] for at, option in enumerate(options) if option == "--build-arg"}
            assert given <= declared
            assert set(options[::2]) <= {"-f", "-t", "--build-arg"}
        case "docker", ["push", image]:
            built = [each for each in REST if each.startswith("docker build")]
            assert any(f"-t {image} " in each for each in built), "no command builds this image"
        case "docker", ["buildx", "imagetools", "inspect", image, "--format", _]:
            assert f"ARG PYTHON_IMAGE={image}\n" in (ROOT / "controller" / "Dockerfile").read_text()
        case "export", [assignment]:
            assert re.fullmatch(r"REGISTRY=\S+", assignment)
        case script, _ if (ROOT / script).is_file():
            arguments[arguments.index("--python") + 1] = sys.executable  # the one of this machine
            dry = subprocess.run([ROOT / script, *arguments, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
            assert dry.returncode == 0, dry.stderr
        case _:
            pytest.fail(f"no check for {command!r}: add one here")


def test_blocks_fall_into_commands_as_bash_reads_them() -> None:
    text = """
# a comment
export A=1   # and one behind

helm upgrade x \\
  --set a=b
cat <<EOF | sort
b
a
EOF
for x in 1 2; do
  echo $x
done
sleep 9 &
"""
    assert Block("page.md", "place", text).commands == (
        "export A=1   # and one behind",
        "helm upgrade x \\\n  --set a=b",
        "cat <<EOF | sort\nb\na\nEOF",
        "for x in 1 2; do\n  echo $x\ndone",
        "sleep 9 &",
    )


def test_a_page_without_a_heading_or_an_end_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading: it's\n\n```shell\na\n```\n\n```shell\nb\n")
    found = fences(str(page))
    assert next(found) == ("shell", "a", "a-heading-its", 3)
    with pytest.raises(AssertionError, match="the block of line 7 does not end"):
        next(found)
