"""`diloco up` while another program listens on the port of the syncers, as a person runs them."""

from __future__ import annotations

import fcntl
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from diloco.contract import SYNCER_PORT
from diloco_local.addresses import Network

DILOCO = Path(sys.executable).parent / "diloco"
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def only_network(tmp_path: Path) -> Iterator[Path]:
    """A temporary directory in which one network of 127/8 alone is free, and a socket has the port there. A socket with the port of every
    address would meet the syncers of other tests."""
    network = Network.reserve(random.Random())  # this machine's: no other test uses it meanwhile
    locks = []
    for second in range(1, 255):
        if second != network.second:
            locks.append((tmp_path / f"diloco-loopback-127.{second}.lock").open("w"))
            fcntl.flock(locks[-1], fcntl.LOCK_EX)
    with socket.create_server((f"127.{network.second}.255.254", SYNCER_PORT)):
        yield tmp_path
    for lock in locks:
        lock.close()
    network.close()


@pytest.mark.slow
def test_a_taken_port_is_one_line_that_says_what_to_do(only_network: Path) -> None:
    ended = subprocess.run(
        [DILOCO, "up", str(EXAMPLES / "cpu.yaml"), "--state-dir", "state"],
        cwd=only_network,
        env={"TMPDIR": str(only_network), "PATH": str(DILOCO.parent)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    [said] = ended.stderr.splitlines()
    assert said.startswith(f"port {SYNCER_PORT} is taken on every address of this machine, and the syncer of every job must listen on it.")
    assert f"`ss -ltnp 'sport = :{SYNCER_PORT}'` shows it" in said
