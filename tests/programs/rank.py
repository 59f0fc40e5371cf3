"""One rank of a unit that does nothing but be there, for tests of what happens when another is lost.

    python tests/programs/rank.py RANK RANKS PORT [MASTER_PORT]

The contract's environment says which unit it is of. It writes `met` to stdout once all ranks are there, then obeys one line of stdin:

hang      its main thread waits in the kernel, as in a collective, and reaches no line of Python any more
barrier   the same in torch's gloo barrier, at which it waits for all others; it has met them at MASTER_PORT before
raise X   raise ValueError(X)
talk      write `talks`, and tell the leader something without end
leave     leave orderly, write `left`, and hang; `leave early`: as a program does that has left its loop
exit      end without a word, with status 0
"""

from __future__ import annotations

import os
import sys
import time

from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import deal
from diloco.environment import tls_files
from diloco.learner.config import read_learner_config
from diloco.ranks.channel import RankIdentity
from diloco.ranks.follower import Follower
from diloco.ranks.leader import Leader
from diloco.ranks.messages import pieces_to_wire
from diloco.ranks.ranks_pb2 import RankHello, Stepped, ToLeader

LAYOUT = Layout([TensorSpec("w", (8, 4))])


def main() -> None:
    rank, ranks, port = (int(x) for x in sys.argv[1:4])
    config = read_learner_config(os.environ)
    me = RankIdentity(config.job.uid, config.unit, config.attempt, rank, ranks)
    files = tls_files(os.environ)
    channel = Leader(me, files, "127.0.0.1", port, layout=LAYOUT, session=b"s") if rank == 0 else Follower(me, files, "127.0.0.1", port)
    if len(sys.argv) > 4:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[4]}", rank=rank, world_size=ranks)
    hello = RankHello(
        job_uid=me.job_uid,
        unit=me.unit,
        attempt=me.attempt,
        rank=rank,
        ranks=ranks,
        framework="none",
        fingerprint=LAYOUT.fingerprint,
        data_rank=rank,
        data_ranks=ranks,
        owned=pieces_to_wire(deal(LAYOUT.tensors, ranks)[rank]),
    )
    channel.meet(hello, timeout=180.0)
    print("met", flush=True)
    what, _, text = sys.stdin.readline().strip().partition(" ")
    if what == "raise":
        raise ValueError(text)
    if what == "barrier":
        import torch.distributed as dist

        dist.barrier()
    if what == "talk":
        print("talks", flush=True)
    while what == "talk":
        assert isinstance(channel, Follower)
        channel.say(ToLeader(stepped=Stepped(tokens=1)))
        channel.send()
        time.sleep(2e-5)
    if what == "leave":
        channel.left(early=text == "early")
        print("left", flush=True)
    if what != "exit":
        os.read(os.pipe()[0], 1)


if __name__ == "__main__":
    main()
