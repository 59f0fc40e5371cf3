"""`python -m benchmarks.kube.scrapers HOST:PORT SCRAPERS SILENT`: what any pod in a cluster may send to the operator's metrics endpoint.

Scrapers ask for /metrics without a token, and again as soon as they have an answer. Silent connections send half a request and stay. The
process has the lowest priority: in a real cluster it would run on a machine of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time

HOUR = 3600.0


def connected(host: str, port: int, tls: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=30)
    return tls.wrap_socket(connection) if tls else connection


def scrape(host: str, port: int, tls: ssl.SSLContext | None) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n"
    while True:
        with contextlib.suppress(OSError), connected(host, port, tls) as connection:
            connection.sendall(request)
            while connection.recv(1 << 16):
                pass


def keep_silent(host: str, port: int) -> None:
    """Keep a silent connection open. If the server closes it, open another one after a second."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=HOUR) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
            connection.recv(1)
        time.sleep(1)


def serves_tls(host: str, port: int, tls: ssl.SSLContext) -> bool:
    try:
        with connected(host, port, tls):
            return True
    except (ssl.SSLError, ConnectionResetError, TimeoutError):
        return False


if __name__ == "__main__":
    os.nice(19)
    threading.stack_size(1 << 18)
    name, _, number = sys.argv[1].rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secure = context if serves_tls(name, int(number), context) else None
    work = [threading.Thread(target=scrape, args=(name, int(number), secure), daemon=True) for _ in range(int(sys.argv[2]))]
    work += [threading.Thread(target=keep_silent, args=(name, int(number)), daemon=True) for _ in range(int(sys.argv[3]))]
    for each in work:
        each.start()
    sys.stdout.write("scraping\n")
    sys.stdout.flush()
    time.sleep(HOUR)
