"""The documents' commands for this machine, typed as they stand.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from builders.document_reader import a_checkout, last, make_small, reading, write_files

pytestmark = pytest.mark.timeout(1800)

OF_THIS_MACHINE = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "HELM_"))}


@pytest.mark.full
def test_a_run_on_a_laptop_stops_goes_on_and_is_cleaned_up_as_the_documents_say(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    make_small(checkout, "quickstart.yaml")
    with reading("laptop", tmp_path, OF_THIS_MACHINE) as reader:
        shown = reader.type("docs/guide/laptop.md#run-it-on-a-laptop", {"diloco up": r"v5p-0 [^\n]*Training"})
        assert "To continue" in last(shown)
        planned, changed = reader.type("docs/guide/laptop.md#plan-before-you-apply").values()
        assert "bytes-lm in namespace default: fits, 4 units" in planned
        assert "2nd choice; v5p: full" in planned
        assert "AFTER --without h100, --add v6e=1x2x2, --drain v6e-a" in changed
        assert "Complete" in last(reader.type("docs/stopping.md#on-a-laptop"))
        tape, replayed = reader.type("docs/guide/laptop.md#what-a-syncer-wrote-down").values()
        assert "merge   700" in tape
        assert "all as the syncer had them" in replayed
        write_files("docs/guide/status.md", checkout)
        scalars = re.findall(r"^(\w+) (\d+) (\S+)$", last(reader.type("docs/guide/status.md#any-other-tracker")), re.MULTILINE)
        assert {"loss", "held_out_loss", "tokens", "contributing_learners"} <= {tag for tag, _, _ in scalars}
        assert ("contributing_learners", "700") in {(tag, step) for tag, step, _ in scalars}
        listed, *exported = reader.type("docs/guide/model.md#get-the-model").values()
        assert re.search(r"\b700\b.*\bwhole\b", listed)
        assert len(exported) == 2
        assert all("outer step 700 of job bytes-lm" in said for said in exported)
        reader.type("docs/guide/laptop.md#a-llama-on-your-own-data")
        assert sorted(file.name for file in (checkout / "tales").iterdir()) == ["config.json", "model.safetensors"]
        reader.type("docs/stopping.md#on-a-laptop/2")
        assert not (checkout / ".diloco").exists()


def test_a_program_of_the_readers_own_trains_on_this_machine_as_its_page_says(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    write_files("docs/your-program.md", checkout)
    with reading("own program", tmp_path, OF_THIS_MACHINE) as reader:
        assert "Complete" in last(reader.type("docs/your-program.md#try-it-here"))
    logs = [path.read_text() for path in (checkout / "my-training/.diloco/logs/default").glob("my-training-cpu-?-a1-0/learner-0.log")]
    assert len(logs) == 2
    # The job takes 5 s. A unit that reaches the syncer later than that never trains, and is ended with its job.
    trained = [log for log in logs if "trains from outer step" in log]
    assert trained
    assert all("the job is done" in log for log in trained)


@pytest.mark.full
def test_programs_of_other_frameworks_train_on_this_machine_as_their_tutorials_say(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    programs = ("torchrun", "hf-trainer", "lightning", "maxtext")
    with reading("programs", tmp_path, OF_THIS_MACHINE) as reader:
        reader.type("docs/tutorials/README.md#set-up")
        for program in programs:
            write_files(f"docs/tutorials/{program}.md", checkout)
            assert "Complete" in last(reader.type(f"docs/tutorials/{program}.md#try-it-here"))
    # Ranks of a unit each have a pod here; of some programs only the first rank speaks. Jobs are so short that one unit may do all steps
    # before the other one is there, which is then ended with its job.
    texts: defaultdict[str, str] = defaultdict(str)
    for log in checkout.glob(".my-*/logs/default/my-*-cpu-?-a1-?/*.log"):
        texts[log.parent.name.rpartition("-")[0]] += log.read_text()
    trained = {unit for unit, text in texts.items() if "trains from outer step" in text}
    assert {unit.rpartition("-cpu-")[0] for unit in trained} == {"my-torchrun", "my-trainer", "my-lightning", "my-maxtext"}
    assert trained == {unit for unit, text in texts.items() if "the job is done" in text}


STAND_IN = """#!/bin/bash
printf '%s\\n' "$(basename "$0")" "$@" "" >>"$STAND_INS/typed"
[ "$*" != "buildx bake --file - operator syncer learner-torch-cpu" ] || cat >"$STAND_INS/plan.json"
env | grep ^BUILDX_ >>"$STAND_INS/environment" || true
"""


def test_the_commands_for_kind_load_the_images_that_chart_and_job_name(tmp_path: Path) -> None:
    """Up to what Docker, kind and the cluster do: stand-ins note what they were asked for. tests/cluster types the chart's commands."""
    checkout, stand_ins = a_checkout(tmp_path), tmp_path / "stand-ins"
    stand_ins.mkdir()
    for name in ("docker", "kind", "helm", "kubectl"):
        (stand_ins / name).write_text(STAND_IN)
        (stand_ins / name).chmod(0o755)
    environment = {**OF_THIS_MACHINE, "PATH": f"{stand_ins}:{OF_THIS_MACHINE['PATH']}", "STAND_INS": str(stand_ins)}
    with reading("kind", tmp_path, environment) as reader:
        reader.type("docs/install.md#on-kind", all_of_it=True)
    typed = [each.split("\n") for each in (stand_ins / "typed").read_text().strip().split("\n\n")]
    assert [words[:2] for words in typed] == [
        ["kind", "create"],
        ["docker", "buildx"],
        ["kind", "load"],
        ["helm", "upgrade"],
        ["kubectl", "apply"],
    ]
    asked, chosen = json.loads((stand_ins / "plan.json").read_text()), typed[1][5:]
    built = [asked["target"][name] for name in chosen]
    machine = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[platform.machine()]
    assert {(*each["platforms"], *each["output"]) for each in built} == {(machine, "type=docker")}
    assert (stand_ins / "environment").read_text() == "BUILDX_NO_DEFAULT_ATTESTATIONS=1\n"
    loaded = typed[2][3:]
    assert loaded == [tag for each in built for tag in each["tags"]]
    # What the cluster will ask for, so that it pulls nothing.
    chart = checkout / "helm" / "diloco-operator"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    names = [values["image"], values["images"]["syncer"]]
    job = yaml.safe_load((checkout / typed[4][3]).read_text())
    [container] = job["spec"]["pools"][0]["template"]["spec"]["containers"]
    assert loaded == [*(f"{name['repository']}:{name['tag'] or version}" for name in names), container["image"]]
    assert {name["pullPolicy"] for name in names if "pullPolicy" in name} <= {"IfNotPresent"}
