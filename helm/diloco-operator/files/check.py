# ruff: noqa: S310, T201
"""`helm test` runs this in the operator's image: is the operator ready, and does it serve metrics? READYZ and METRICS are URLs.

With METRICS "" it checks readiness only.
"""

import os
import sys
import time
import urllib.error
import urllib.request

END = time.monotonic() + float(os.environ["SECONDS_TO_WAIT"])


def read(url: str) -> str:
    """Retries until the time is up: a Service may exist before its endpoints."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if time.monotonic() > END:
                detail = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                sys.exit(f"{url} does not answer: {error} {detail}")
            time.sleep(1)


print(f"{os.environ['READYZ']}: {read(os.environ['READYZ']).strip()}")
if os.environ["METRICS"]:
    families = sum(line.startswith("# TYPE ") for line in read(os.environ["METRICS"]).splitlines())
    if not families:
        sys.exit(f"{os.environ['METRICS']} serves no metric")
    print(f"{os.environ['METRICS']}: {families} metrics")
