"""What the documents tell people to type: shell blocks, their commands, and commands within sentences and tables.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = "shell"
"""Language of the fences whose content is to be typed."""

SCENARIOS: dict[str, tuple[str, ...]] = {
    "laptop": (
        "docs/guide/laptop.md#run-it-on-a-laptop",
        "docs/guide/laptop.md#plan-before-you-apply",
        "docs/stopping.md#on-a-laptop",
        "docs/guide/laptop.md#what-a-syncer-wrote-down",
        "docs/guide/status.md#any-other-tracker",
        "docs/guide/model.md#get-the-model",
        "docs/guide/laptop.md#a-llama-on-your-own-data",
        "docs/stopping.md#on-a-laptop/2",
    ),
    "programs": (
        "docs/tutorials/README.md#set-up",
        "docs/tutorials/torchrun.md#try-it-here",
        "docs/tutorials/hf-trainer.md#try-it-here",
        "docs/tutorials/lightning.md#try-it-here",
        "docs/tutorials/maxtext.md#try-it-here",
    ),
    "gpus": (
        "docs/tutorials/gpus.md#what-the-cluster-has",
        "docs/tutorials/gpus.md#train",
        "docs/tutorials/gpus.md#lose-a-unit",
        "docs/tutorials/gpus.md#get-the-model",
    ),
    "tpus": ("docs/tutorials/tpus.md#tpu-slices-of-several-hosts", "docs/tutorials/tpus.md#tpu-slices-of-several-hosts/2"),
    "kueue": (
        "docs/tutorials/kueue.md#a-queue",
        "docs/tutorials/kueue.md#a-job-of-the-queue",
        "docs/tutorials/kueue.md#more-quota",
        "docs/tutorials/kueue.md#more-quota/2",
    ),
    "karpenter": ("docs/tutorials/karpenter.md#karpenter", "docs/tutorials/karpenter.md#karpenter/2"),
    "own program": ("docs/your-program.md#try-it-here",),
    "kind": ("docs/install.md#on-kind",),
    "own image": ("docs/your-program.md#in-the-cluster", "docs/your-program.md#when-it-fails"),
    "chart": (
        "docs/install.md#the-chart",
        "docs/install.md#a-job",
        "docs/install.md#upgrade",
        "docs/install.md#uninstall",
        "docs/install.md#namespaces",
        "docs/install.md#namespaces/2",
        "docs/sharing.md#two-teams",
        "docs/sharing.md#two-teams/2",
        "docs/sharing.md#priority",
        "docs/sharing.md#priority/2",
        "docs/sharing.md#quota",
        "docs/sharing.md#who-holds-what",
        "docs/stopping.md#remove-the-operator",
        "helm/diloco-operator/README.md#diloco-operator",
    ),
    "simulated nodes": (
        "CONTRIBUTING.md#a-cluster-of-simulated-nodes",
        "CONTRIBUTING.md#a-cluster-of-simulated-nodes/2",
        "CONTRIBUTING.md#a-cluster-of-simulated-nodes/3",
        "docs/guide/troubleshooting.md#a-full-volume",
        "docs/stopping.md#suspend-and-resume",
        "docs/stopping.md#fewer-learners",
        "docs/stopping.md#finish-early",
        "docs/stopping.md#after-the-end",
        "docs/guide/model.md#get-the-model/2",
        "docs/guide/troubleshooting.md#logs-also-after-the-end",
        "docs/stopping.md#after-the-end/2",
        "docs/stopping.md#go-on-after-the-end",
        "docs/stopping.md#delete-a-job",
        "docs/backup.md#go-on-from-a-claim",
        "docs/operator.md#the-operator-process",
    ),
}
"""By scenario of tests/e2e/test_documents.py, tests/cluster/test_documents.py, tests/cluster/test_tutorials.py,
tests/cluster/growth/test_tutorials.py and tests/cluster/nodes/test_your_program.py: the blocks that it types, each as PAGE#HEADING, with /2
for the second below a heading."""

NOT_TYPED = {
    "make images ": "there is no image builder and no registry here; tests/unit/hack/test_image_plan.py reads its plan",
    "docker ": "there is no image builder and no registry here",
    "export REGISTRY=registry.example.com/diloco": "names that registry; the scenarios that use it set it",
    "hack/images/install.sh ": "brings gigabytes of packages; tests/images runs it for the images of the nodes",
    "make demo": "trains for minutes; tests/e2e/test_up.py runs the same job, smaller, with the same fault",
    "make test": "this is `make test`",
    "make quick": "its tests are among those of `make test`",
    "make bench-peers": "downloads the peers and measures for twenty minutes",
    "make hooks": "writes into the checkout's .git",
}
"""Beginnings of commands that no scenario types, and why. test_document_blocks.py checks of them what can be checked."""


@dataclass(frozen=True)
class Block:
    page: str
    """Path from the top of the repository."""
    place: str
    """Anchor of the heading above it, with the number of the block below that heading if it is not the first."""
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}#{self.place}"

    @property
    def commands(self) -> tuple[str, ...]:
        """In order, each as it stands, without lines that are empty or only a comment."""
        return tuple(_commands(self.text))


def not_typed(command: str) -> str | None:
    """Why no scenario types it; None: one does."""
    return next((why for beginning, why in NOT_TYPED.items() if command.startswith(beginning)), None)


@cache
def pages() -> tuple[str, ...]:
    """Every Markdown file of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return tuple(page for page in listed.stdout.splitlines() if (ROOT / page).is_file())


def fences(page: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield each fenced block: its language, its text, the anchor of the heading above it, and the number of its first line."""
    language, heading, begin = "", "", 0
    text: list[str] | None = None
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if mark := re.match(r"\s*(?:```|~~~)(.*)", line):
            if text is None:
                language, begin, text = mark[1].strip(), number, []
            else:
                yield language, "\n".join(text), heading, begin
                text = None
        elif text is not None:
            text.append(line)
        elif title := re.match(r"#+ (.+)", line):
            heading = re.sub(r"[^\w\- ]", "", title[1].lower()).strip().replace(" ", "-")
    assert text is None, f"{page}: the block of line {begin} does not end"


@cache
def shell_blocks() -> dict[str, Block]:
    """Every shell block of every page, by its name."""
    found: dict[str, Block] = {}
    for page in pages():
        counts: dict[str, int] = {}
        for language, text, heading, _ in fences(page):
            if language == SHELL:
                counts[heading] = counts.get(heading, 0) + 1
                block = Block(page, heading if counts[heading] == 1 else f"{heading}/{counts[heading]}", text)
                found[block.name] = block
    return found


def _commands(text: str) -> Iterator[str]:
    gathered: list[str] = []
    for line in text.splitlines():
        if not gathered and (not line.strip() or line.lstrip().startswith("#")):
            continue
        gathered.append(line)
        command = "\n".join(gathered)
        parsed = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        # bash takes a trailing backslash at the end of its input, and warns only of a here-document that does not end.
        if parsed.returncode == 0 and not parsed.stderr and not line.endswith("\\"):
            yield command
            gathered = []
    assert not gathered, f"bash cannot read this: {gathered}"


def inline_commands(page: str, *programs: str) -> Iterator[str]:
    """Each `code` of sentences and tables that begins with one of the programs and has something after it."""
    outside = re.sub(r"^(```|~~~).*?^\1$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", outside):
        program, _, rest = code.replace("\\|", "|").partition(" ")
        if program in programs and rest:
            yield " ".join(code.replace("\\|", "|").split())


def words(command: str) -> list[str]:
    """Without the signs of a synopsis: brackets around what may be left out, an ellipsis, quotes."""
    return re.sub(r"[\[\]…'\"]", " ", command).split()


PRESENT = [page for page in pages() if not page.startswith(("docs/decisions/", "docs/results/", "CHANGELOG.md"))]
"""Pages whose commands are those of now. The others are of their day."""
