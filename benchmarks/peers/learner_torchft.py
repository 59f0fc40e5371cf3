"""A replica of torchft's streaming DiLoCo, set up as in its own `DiLoCoTrainer`. TORCHFT_LIGHTHOUSE names its lighthouse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from benchmarks.peers.loopback import ADDRESS
from benchmarks.peers.setting import OUTER_MOMENTUM, OUTER_RATE, SYNC_INTERVAL
from benchmarks.peers.training import Learner

TIMEOUT = timedelta(seconds=10)
FRAGMENTS = 4


def fragments(model: Any) -> list[nn.Module]:
    """Cut the model into FRAGMENTS fragments of whole modules. H must be a multiple of their number."""
    blocks = list(model.blocks)
    share = len(blocks) // (FRAGMENTS - 1)
    middle: list[nn.Module] = [nn.ModuleList(blocks[start : start + share]) for start in range(0, len(blocks), share)]
    return [nn.ModuleList([model.embedding, model.position, model.final_norm, model.head]), *middle]


def main() -> None:
    learner = Learner()
    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        learner.model.load_state_dict(state["model"])
        learner.optimizer.load_state_dict(state["inner_optim"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=lambda: {"model": learner.model.state_dict(), "inner_optim": learner.optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr=ADDRESS,
        store_port=store.port,
        replica_id=learner.name,
        hostname=ADDRESS,
    )
    parts = fragments(learner.model)
    outer: list[torch.optim.Optimizer] = [
        torch.optim.SGD(part.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True) for part in parts
    ]
    try:
        with DiLoCo(manager, parts, learner.optimizer, outer, sync_every=SYNC_INTERVAL, pin_memory=False):
            for windows in learner.batches():
                before = manager.current_step()
                learner.train(windows)
                learner.note_step()
                if manager.current_step() > before and manager.num_participants() == learner.learners and manager.is_participating():
                    learner.note_merged(learner.name)
        learner.note_loss()
    finally:
        manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
