"""What spares cost, as the difference of two outlooks."""

from __future__ import annotations

from builders.jobs import Obj, a_manifest, tpu_pool
from diloco_local.preview.outlook import JobOutlook, outlook
from diloco_local.preview.preview import further_units, without_spares


def with_units(*names: str) -> tuple[JobOutlook, ...]:
    units = [{"name": name, "pool": name.partition("-")[0], "slice": f"slice-{name}", "state": "Training", "attempt": 1} for name in names]
    pools = (tpu_pool("v5p", "tpu-v5p", "2x2x1", max=4), tpu_pool("v6e", "tpu-v6e", "2x2", max=4))
    return (outlook({**a_manifest("lm", namespace="ns", min=1, max=4, pools=pools), "status": {"units": units}}, {}, {}),)


def test_a_unit_that_runs_only_without_spares_is_what_they_cost() -> None:
    assert further_units(with_units("v5p-0"), with_units("v5p-0", "v6e-0")) == ("ns/lm/v6e-0",)


def test_a_unit_that_would_run_elsewhere_is_no_further_one() -> None:
    assert further_units(with_units("v5p-0"), with_units("v6e-0")) == ()
    assert further_units(with_units("v5p-0"), with_units("v6e-0", "v6e-1")) == ("ns/lm/v6e-0",)


def test_a_job_without_spares_is_the_same_but_for_them_and_one_that_cannot_be_read_stays_as_it_is() -> None:
    bare = tpu_pool()
    broken: Obj = {"metadata": {"name": "broken"}, "spec": {"pools": "none"}}
    found = without_spares([a_manifest("lm", pools=({**bare, "spares": 2},)), broken])
    assert found == [a_manifest("lm", pools=(bare,)), broken]
