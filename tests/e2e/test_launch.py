"""Units of several simulated hosts run as several processes, which meet with what their pods' environment says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.exploration import full
from builders.jobs import JobBuilder, Obj, cpu_pool, template
from builders.local import Cluster, local_control_plane
from builders.nodes import a_fleet_node

pytestmark = pytest.mark.timeout(1200)

SLOW = 900
"""Seconds. Every rank imports torch, at the low priority of containers."""
MEETING, PLAIN_MEETING = (str(Path(__file__).parents[1] / "programs" / name) for name in ("meeting.py", "plain_meeting.py"))
"""Over torch's gloo, with which test_ranks.py of tests/frameworks/torch begins, too; over a socket."""
FLEET = [a_fleet_node(f"cpu-{index}", cpu=8, memory="16Gi", pods=110) for index in range(3)]


def a_job(command: list[str], *, hosts: int, processes: int | None) -> Obj:
    pool = cpu_pool(
        hosts=hosts, max=1, template=template(command=command, terminationGracePeriodSeconds=5), processesPerHost=processes or 1
    )
    return JobBuilder("meets").with_learners(1, 1).with_restarts(0, initial="0s").with_pools(pool).with_training(steps=1000).build()


async def meetings(cluster: Cluster, unit: str, hosts: int) -> list[Obj]:
    """What the ranks of a unit printed, by rank, once the unit has ended well."""
    await cluster.unit("meets", unit, lambda found: found.get("state") in ("Completed", "Failed"), timeout=SLOW)
    text = "".join(cluster.log(f"meets-{unit}-a1-{host}") for host in range(hosts))
    assert "Traceback" not in text, text
    lines = [line[line.index("{") :] for line in text.splitlines() if '"rank"' in line]
    return sorted(map(json.loads, lines), key=lambda found: int(found["rank"]))


@pytest.mark.parametrize(
    ("command", "processes", "ranks"),
    [
        (["diloco-launch", PLAIN_MEETING], 2, 4),
        full(["diloco-launch", MEETING], 2, 4),
        full(["python", MEETING], None, 2),
    ],
    ids=["diloco-launch", "diloco-launch, torch", "one python per host, torch"],
)
async def test_hosts_of_a_unit_meet_however_the_program_is_started(
    tmp_path: Path, command: list[str], processes: int | None, ranks: int
) -> None:
    async with local_control_plane(tmp_path, FLEET) as cluster:
        await cluster.apply(a_job(command, hosts=2, processes=processes))
        found = await meetings(cluster, "cpu-0", 2)
        # All add up 1 + 2 + … + ranks.
        seen = [(each["rank"], each["size"], each["total"], each["node"]) for each in found]
        assert seen == [(rank, ranks, ranks * (ranks + 1) // 2, str(rank * 2 // ranks)) for rank in range(ranks)]


async def test_rank_that_raises_names_itself_in_the_units_message(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, time; int('x') if os.environ['RANK'] == '3' else time.sleep(600)")
    async with local_control_plane(tmp_path / "state", FLEET) as cluster:
        await cluster.apply(a_job(["diloco-launch", str(tmp_path / "train.py")], hosts=2, processes=2))
        unit = await cluster.unit("meets", "cpu-0", lambda found: found.get("state") == "Failed", timeout=SLOW)
        assert "exit 1: rank 3: ValueError: invalid literal for int() with base 10: 'x'" in unit["message"]
