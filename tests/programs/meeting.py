"""A program that only meets: its ranks add up their numbers over gloo and say what they see. It joins no job."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    shown = {"rank": dist.get_rank(), "size": dist.get_world_size(), "total": int(total.item()), "node": os.environ.get("NODE_RANK")}
    print(json.dumps(shown), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
