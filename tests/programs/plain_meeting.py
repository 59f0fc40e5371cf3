"""A program that only meets, as meeting.py does, without a framework: its ranks add up their numbers over a socket of the first one."""

from __future__ import annotations

import json
import os
import socket
import time

PATIENCE = 180.0
"""Limit of each wait for another process, seconds."""


def total_of_all(rank: int, ranks: int, address: tuple[str, int]) -> int:
    """Return 1 + 2 + … as the first rank has it from all of them."""
    if rank:
        with connected(address) as link:
            link.sendall(bytes([rank + 1]))
            return link.recv(1)[0]
    with socket.create_server(("", address[1])) as server:
        server.settimeout(PATIENCE)
        links = [server.accept()[0] for _ in range(ranks - 1)]
        total = 1 + sum(link.recv(1)[0] for link in links)
        for link in links:
            link.sendall(bytes([total]))
            link.close()
    return total


def connected(address: tuple[str, int]) -> socket.socket:
    """Connect to the first rank, which may not listen yet."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(address, timeout=PATIENCE)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    total = total_of_all(rank, ranks, (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    print(json.dumps({"rank": rank, "size": ranks, "total": total, "node": os.environ.get("NODE_RANK")}), flush=True)


if __name__ == "__main__":
    main()
