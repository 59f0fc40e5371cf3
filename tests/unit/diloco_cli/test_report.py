"""`diloco report`: the page and the picture of a record, through the command."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from builders.dashboards import condition
from builders.jobs import a_job
from builders.records import ARecord, a_killed_unit
from click.testing import CliRunner
from diloco_cli.diloco.main import main
from diloco_cli.phase_looks import LOOKS
from diloco_local.record.file import NAME
from diloco_operator.api.phases import Phase

CLAIM = (
    "u-2 killed at step 81, back after 4.5 s; meanwhile the others' longest step took 1.20 times that of the 4.5 s before, "
    "and 5 merges had 2.2 of 3 units on average; tokens exact: 25,600 are 400 samples of 64, each once."
)
HOSTILE = "</title></svg><script>alert(1)</script>&<img src=x onerror='alert(2)'>\x00\x1b"


def report(*arguments: object, status: int = 0) -> str:
    outcome = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert outcome.exit_code == status, outcome.output
    return outcome.output


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.said += data


def page_of(record: ARecord, directory: Path) -> Page:
    report(record.write(directory), "-o", directory / "page.html")
    return Page((directory / "page.html").read_text(encoding="utf-8"))


def picture_of(record: ARecord, directory: Path) -> ElementTree.Element:
    report(record.write(directory), "--picture", directory / "picture.svg")
    return ElementTree.fromstring((directory / "picture.svg").read_text(encoding="utf-8"))


def test_the_page_is_written_into_the_state_directory_and_the_claim_is_said(tmp_path: Path) -> None:
    said = report(a_killed_unit().write(tmp_path))
    assert said == f"lm: {CLAIM}\nReport: {tmp_path / 'report.html'}\n"
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    for text in ("Run of lm", "u-2 killed at step 81", "Tokens exact", "Training loss", "Units in each merge", "Longest step", "Exchanged"):
        assert text in page.said, text
    assert "What keeps it from more" not in page.said, "it is over"


def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    page_of(a_killed_unit(), tmp_path)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.links == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert set(re.findall(r"\w+://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}, "the name of a language, which nothing loads"
    assert "@import" not in text
    assert "url(" not in text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    record = ARecord(f"default/{HOSTILE}").began(0.0, HOSTILE).train(HOSTILE, "u-0").steps(HOSTILE, [1, 2, 3, 4]).steps("u-0", [1, 2, 3])
    record.merge(2.0, 1, HOSTILE).fault(2.5, HOSTILE, signal=HOSTILE).state(5.0, HOSTILE).ended(6.0, HOSTILE)
    page = page_of(record, tmp_path)
    assert not {"script", "img"} & set(page.tags)
    assert "<script>alert(1)</script>" in page.said, "it is shown as what it is"
    picture = picture_of(record, tmp_path)
    assert not [each for each in picture.iter() if each.tag.rpartition("}")[2] in ("script", "img", "foreignObject")]


def test_the_figures_of_the_job_are_on_the_page(tmp_path: Path) -> None:
    said = page_of(a_killed_unit(), tmp_path).said
    assert "Complete, outer step 10 of 100" in said
    assert "loss2.0000" in said
    assert "held-out loss1.9000" in said
    assert "units in a merge2.80 of 3" in said  # 16 merges of 3 units and 4 of 2
    assert "exchanged15.8kB" in said  # 2,800 bytes to the syncer and 13,000 from it
    assert "4.5 s" in said


def test_the_picture_shows_loss_units_and_the_kill(tmp_path: Path) -> None:
    svg = picture_of(a_killed_unit(), tmp_path)
    assert svg.get("aria-label") == "Loss and units of lm over time; u-2 gets SIGKILL at 0:10"
    texts = [each.text or "" for each in svg.iter() if each.tag.endswith("text")]
    assert {"Training loss", "Units", "u-0", "u-1", "u-2", "u-2 killed", "held-out 1.900"} <= set(texts)
    bars = [each for each in svg.iter() if each.tag.endswith("rect") and each.get("fill") == LOOKS[Phase.RECOVERY].colour]
    # The legend's, and one bar of 3.95 s of 21 s on 744 pixels.
    assert [float(bar.get("width") or 0) for bar in bars] == [11, pytest.approx(3.95 / 21 * 744, abs=0.1)]


def test_each_phase_has_a_colour_of_its_own() -> None:
    assert len({look.colour for look in LOOKS.values()}) == len(Phase)


def test_a_record_of_several_jobs_has_a_picture_of_the_one_that_is_named(tmp_path: Path) -> None:
    record = a_killed_unit()
    record.job = "default/other"
    record.train("v-0").write(tmp_path)
    assert "choose one of the jobs with --job: lm, other" in report(tmp_path, "--picture", tmp_path / "p.svg", status=2)
    assert "the record has no job 'none'; it has: lm, other" in report(tmp_path, "--picture", tmp_path / "p.svg", "--job", "none", status=2)
    assert report(tmp_path, "--picture", tmp_path / "p.svg", "--job", "other") == f"Picture of other: {tmp_path / 'p.svg'}\n"
    assert "the page has all jobs" in report(tmp_path, "--job", "other", status=2)


def test_a_record_with_a_torn_line_is_shown_and_says_what_is_missing(tmp_path: Path) -> None:
    file = a_killed_unit().write(tmp_path) / NAME
    file.write_bytes(file.read_bytes()[:-5])
    assert "its last one, is cut short" in report(tmp_path)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "its last one, is cut short" in page.said
    assert "without an end on record" in page.said


@pytest.mark.parametrize(
    "record", [ARecord(), ARecord().train("u-0"), ARecord().merge(0.0, 1, loss=None), ARecord().state(0.0, "Starting")]
)
def test_a_run_of_which_little_is_known_is_shown(tmp_path: Path, record: ARecord) -> None:
    assert "<h1>Run" in (report(record.write(tmp_path)), (tmp_path / "report.html").read_text(encoding="utf-8"))[1]


def test_a_job_on_record_has_the_pages_of_the_dashboard(tmp_path: Path) -> None:
    unit = {"name": "u-2", "pool": "v5p", "state": "Training", "attempt": 2, "message": HOSTILE}
    status = {"state": "Complete", "conditions": [condition("Complete")], "units": [unit]}
    obj = {**a_job("lm").in_namespace("default").with_pool().build(), "status": status}
    page = page_of(a_killed_unit().object(21.0, obj), tmp_path)
    assert set(page.links) == {"#/goodput", "#/jobs/default/lm", "#/jobs/default/lm/units/u-2"}  # u-0 is not in its status
    assert page.tags.count("article") == 3
    assert not {"script", "img"} & set(page.tags)
    for text in (
        "How it ended",
        "unit of lm, namespace default",
        "u-2 killed at step 81",
        "<script>alert(1)</script>",
    ):
        assert text in page.said, text


def test_a_job_on_record_that_cannot_be_read_leaves_the_page_of_the_run(tmp_path: Path) -> None:
    for obj in ({}, {"metadata": {"name": "lm", "namespace": "default"}, "spec": 7}, {"metadata": 7}):
        assert "Run of lm" in page_of(a_killed_unit().object(21.0, obj), tmp_path).said


def test_bad_input_is_refused_with_what_to_do(tmp_path: Path) -> None:
    assert "give the state directory of a `diloco up`" in report(tmp_path, status=1)
    assert "does not exist" in report(tmp_path / "none", status=2)
    a_killed_unit().write(tmp_path)
    assert f"{tmp_path / 'none' / 'page.html'} cannot be written" in report(tmp_path, "-o", tmp_path / "none" / "page.html", status=1)
