from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_gpu_node
from builders.stage import Stage
from diloco import contract
from torch.distributed.run import get_args_parser


def test_torchrun_finds_all_that_it_needs_in_the_environment() -> None:
    stage = Stage(a_job().with_gpu_pool(max=1, hosts=2, processesPerHost=8), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    stage.settle()
    [container] = stage.pod("h100-0", 1, 1)["spec"]["containers"]
    second = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    # torchrun takes the default of an option --foo-bar from PET_FOO_BAR: torch/distributed/argparse_util.py
    with pytest.MonkeyPatch.context() as patched:
        for name in ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"):
            patched.setenv(name, second[name])
        options = get_args_parser().parse_args(["train.py"])
    assert (options.nnodes, int(options.node_rank), options.nproc_per_node) == ("2", 1, "8")
    assert (options.master_addr, str(options.master_port)) == (second["MASTER_ADDR"], second["MASTER_PORT"])
    assert second[contract.ENV_PROCESSES_PER_HOST] == "8"
