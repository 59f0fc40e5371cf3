"""[smoke] `diloco up` with two torch units and one JAX unit on one card, in one job. One of them is killed and comes back.

The model computes in bfloat16, and its parameters are float32. All three train before a fragment is merged (the quorum), so the killed
unit has to come back before the job goes on.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from builders.child_processes import die_with_parent
from builders.jobs import JobBuilder, Obj, gpu_pool, template
from builders.nodes import a_fleet_gpu_node, a_fleet_node
from diloco.trainers.llama import SIZES, LlamaConfig

from benchmarks.device.part import PartOptions, log, print_result, run

STEPS, KILL_AT = 60, 20
H = 12
KILLED = "torch-0"
UP = "from diloco_cli.diloco.main import main; main()"
SMALL = LlamaConfig(layers=2, width=32, heads=2, kv_heads=2, hidden=64, context=32)
FULL = SIZES["15m"]
JAX_SHARE = "0.2"
"""Share of the card's memory that JAX takes when it starts. torch takes what it needs."""
SAMPLE_SECONDS = 0.5
EXACT, OF_A_PEER = "tokens exact", "the state of "
"""Beginnings of what `diloco up` says about tokens, and about where a unit's state came from, if all is well."""
MIB = 1 << 20


def job(given: PartOptions, folder: Path) -> Obj:
    """The job. Writes the model's shape into `folder`, where the learners read it."""
    config = folder / "config.json"
    config.write_text(json.dumps((SMALL if given.small else FULL).to_transformers()))
    shared = ["--config", str(config), "--dtype", "bfloat16", "--batch", "2" if given.small else "8", "--warmup", "10"]
    if given.small:
        shared += ["--held-out-tokens", "512"]
    on_card = {} if given.small else {"CUDA_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION": JAX_SHARE}

    def pool(name: str, units: int, *more: str) -> Obj:
        learner = template(command=["python", "-m", f"diloco.trainers.llama_{name}", *shared, *more], env=on_card)
        return gpu_pool(name, hosts=1, acceleratorsPerHost=1, max=units, template=learner)

    training = {
        "steps": STEPS,
        "syncInterval": H,
        "fragments": H,
        "overlapSteps": 2,
        "quorum": 3,
        "checkpoint": {"everySteps": 30, "keep": 2},
    }
    return (
        JobBuilder("smoke")
        .with_learners(3, 3)
        .with_restarts(5)
        .with_pools(pool("torch", 2, "--device", given.device), pool("jax", 1))
        .with_training(**training)
        .build()
    )


class MemoryOfCard:
    """The card's memory in use, by all programs together, sampled until `close`. Without a card there are no samples."""

    def __init__(self, device: str) -> None:
        self.samples: list[tuple[int, int]] = []
        """(outer step at that time, bytes)."""
        self.step = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if device == "cuda":
            self._thread.start()

    def _sample(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._end.wait(SAMPLE_SECONDS):
            answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
            self.samples.append((self.step, int(answer.split()[0]) * MIB))

    def close(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def most(self, first: int, last: int) -> int:
        """The most bytes in these outer steps. 0 if there is no sample."""
        return max((size for step, size in self.samples if first <= step <= last), default=0)


def lines_of_up(given: PartOptions, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the job, and yield the lines of `diloco up -o json`."""
    nodes = [a_fleet_node("cpu-0", cpu=32, memory="64Gi", pods=110), *(a_fleet_gpu_node(f"gpu-{index}") for index in range(4))]
    (folder / "job.yaml").write_text(yaml.safe_dump(job(given, folder)))
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(nodes))
    options = ["--fleet", "fleet.yaml", "--state-dir", "state", "--fault", f"unit={KILLED},step={KILL_AT},signal=KILL"]
    options += ["--priority", "normal", "--no-report", "-o", "json"]
    if "PYTHONPATH" in os.environ:
        options += ["--env", "PYTHONPATH"]
    with subprocess.Popen(
        [sys.executable, "-c", UP, "up", "job.yaml", *options], cwd=folder, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    ) as up:
        assert up.stdout is not None
        for text in up.stdout:
            line = json.loads(text)
            if line["type"] != "status":
                log(text.strip()[:2000])
            yield line
    if up.returncode:
        logs = "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(folder.glob("state/logs/**/*.log")))
        raise RuntimeError(f"diloco up ended with {up.returncode}\n{logs}")


def steps_of(record: Path) -> list[float]:
    """The loss of each local step in the record of the run. NaN if the step has none, or one that is not finite. A resting unit repeats
    its last line without seconds; that is no step."""
    lines = [json.loads(text) for text in record.read_text(encoding="utf-8").splitlines() if text.endswith("}")]
    return [float(line.get("loss", math.nan)) for line in lines if line["type"] == "step" and "seconds" in line]


def main(given: PartOptions) -> None:
    memory = MemoryOfCard(given.device)
    with tempfile.TemporaryDirectory() as name:
        result: dict[str, Any] = {}
        for line in lines_of_up(given, Path(name)):
            if line["type"] == "status":
                memory.step = line["progress"]["step"]
            elif line["type"] == "result":
                result = line
        memory.close()
        losses = steps_of(Path(name) / "state" / "record.jsonl")
    (ended,) = result["jobs"]
    (effect,) = result["faults"]["effects"]
    killed = next(unit for unit in ended["units"] if unit["name"] == KILLED)
    progress = ended["progress"]
    print_result("outer-steps", progress["step"], f"of {STEPS}", state=ended["state"], units=len(ended["units"]), tokens=progress["tokens"])
    print_result(
        "recovery", effect["backSeconds"], "s until the killed unit trained again", began_with=killed["beganWith"], killed_at=effect["step"]
    )
    print_result("tokens-exact", float(effect["tokens"].startswith(EXACT)), "1: each sample once", said=effect["tokens"])
    finite = [loss for loss in losses if math.isfinite(loss)]
    # Losses of the JAX unit come a step later, so its first step has none.
    bad = max(0, len(losses) - len(finite) - 1)
    ends = {"first": finite[0], "last": finite[-1], "held_out": progress["heldOutLoss"]}
    print_result("losses-not-finite", bad, "local steps", steps=len(losses), **{name: round(loss, 4) for name, loss in ends.items()})
    if before := memory.most(2, effect["step"]):
        after = memory.most(effect["step"] + 1, STEPS)
        print_result(
            "device-memory", after / before, "the most after the kill ÷ the most before it", mebibytes=[before // MIB, after // MIB]
        )
    if progress["step"] != STEPS or not effect["tokens"].startswith(EXACT) or bad or not killed["beganWith"].startswith(OF_A_PEER):
        raise SystemExit("the job did not go as it should")


if __name__ == "__main__":
    run(main)
