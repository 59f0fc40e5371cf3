"""Stands in for kube-proxy inside a sandbox: it serves the two Services that every pod may need, at their addresses.

At the API server's address a forwarder listens; at the name server's CoreDNS itself does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from nodes import cache

DNS_ADDRESS = "10.96.0.10"
"""The address of the name server: the one in the range of Services that kubeadm uses too."""
_COREFILE = """\
.:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 1
  }}
}}
"""


def hold_address(address: str) -> None:
    """Give this machine the address. Pods reach it through their default route."""
    subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)


def start_dns(coredns: Path, kubeconfig: Path, folder: Path) -> None:
    """Start a name server for Services and pods, at `DNS_ADDRESS`. It ends with the sandbox."""
    hold_address(DNS_ADDRESS)
    folder.mkdir(parents=True)
    (folder / "Corefile").write_text(_COREFILE.format(address=DNS_ADDRESS, kubeconfig=kubeconfig))
    with (folder / "coredns.log").open("wb") as log:
        subprocess.Popen([coredns, "-conf", folder / "Corefile"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def start_forwarder(address: str, port: int, target_port: int) -> None:
    """Forward connections to `address:port` to 127.0.0.1:`target_port`. It ends with the sandbox."""
    hold_address(address)
    command = [sys.executable, "-m", "nodes.network", address, str(port), str(target_port)]
    environment = {**os.environ, "PYTHONPATH": str(cache.ROOT / "hack")}
    forwarder = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert forwarder.stdout is not None
    if forwarder.stdout.readline() != b"listening\n":
        raise OSError(f"the forwarder cannot listen at {address}:{port}, see above")


async def _forward(address: str, port: int, target_port: int) -> None:
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # either side may go; the other sees the end of its stream
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", target_port)
        except ConnectionError:  # the API server is down, so its Service is down too
            writer.close()
            return
        await asyncio.gather(copy(reader, target_writer), copy(target_reader, writer))

    server = await asyncio.start_server(serve, address, port)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_forward(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
