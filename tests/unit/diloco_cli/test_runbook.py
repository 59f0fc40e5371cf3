"""Every reason has a page of the runbook, or is known to ask nothing."""

import re
from pathlib import Path

import runbook_docs
from click.testing import CliRunner
from diloco_cli.kubectl.main import main
from diloco_cli.runbook import RUNBOOK, url_of
from diloco_operator.api.reasons import Severity, all_reasons

FOLDER = Path(__file__).parents[3] / "docs" / "runbook"
NOTHING_TO_DO = frozenset(
    {
        *("SpecValid", "AllPlaced", "MinimumPlaced", "QuorumContributing", "Finishing", "EnoughLearners", "NotSuspended", "InProgress"),
        *(
            "Suspended",
            "Suspending",
            "StepsReached",
            "TokensReached",
            "FinishedByProgram",
            "HomeComplete",
            "Continuing",
            "Retrying",
            "NotFailed",
        ),
        *("JobComplete", "LearnersStarting", "LearnersReconnecting", "Queued", "UnitStarted", "NodesRequested", "UnitContributes"),
        *("UnitDraining", "PoolChanged", "UnitsChanged", "ScaledDown", "Retried", "TemplateChanged", "JobFailed"),
    }
)
"""These ask nothing of a person, or say the same as another one beside them."""


def test_every_reason_has_a_page_or_asks_nothing() -> None:
    values = {row.value for row in all_reasons()}
    assert RUNBOOK.keys() | NOTHING_TO_DO == values
    assert not RUNBOOK.keys() & NOTHING_TO_DO


def test_every_reason_that_warns_has_a_page() -> None:
    assert [row.value for row in all_reasons() if row.severity is Severity.WARNING and not url_of(row.value)] == []


def test_the_pages_are_up_to_date() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.md")} == runbook_docs.pages(), "run `make docs`"


def test_the_first_page_lists_every_reason_with_or_without_a_page() -> None:
    pages, nothing = runbook_docs.pages()["README.md"].split("## Reasons that ask nothing")
    assert set(re.findall(r"\[`(\w+)`\]\(\1\.md\)", pages)) == RUNBOOK.keys()
    assert set(re.findall(r"`(\w+)`", nothing)) == NOTHING_TO_DO


def test_every_link_of_explain_leads_to_a_page_of_the_checkout() -> None:
    for reason in RUNBOOK:
        assert url_of(reason).endswith(f"docs/runbook/{reason}.md")
        assert (FOLDER / f"{reason}.md").exists()
    assert url_of("AllPlaced") == ""


def test_the_commands_of_the_runbook_exist() -> None:
    named = {
        word for advice in RUNBOOK.values() for text in (*advice.check, *advice.act) for word in re.findall(r"`kubectl diloco (\w+)", text)
    }
    assert named
    for command in sorted(named):
        done = CliRunner().invoke(main, [command, "--help"])
        assert done.exit_code == 0, done.output
