# ruff: noqa: S310, T201
"""`helm test` runs this in the operator's image: is the operator ready, and does it serve metrics? READYZ and METRICS are URLs.

With METRICS "" it checks readiness only. TOKEN_FILE: a file with the bearer token that metrics need; "": they need none.
"""

import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

END = time.monotonic() + float(os.environ["SECONDS_TO_WAIT"])
UNCHECKED = ssl.create_default_context()
"""The operator's certificate is its own: it hides the token from those who listen, and proves nothing."""
UNCHECKED.check_hostname = False
UNCHECKED.verify_mode = ssl.CERT_NONE


def get(url: str, token: str) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5, context=UNCHECKED) as answer:
        return answer.read().decode()


def read(url: str, token: str = "") -> str:
    """Retries until the time is up: a Service may exist before its endpoints, and a right before the API server knows of it."""
    while True:
        try:
            return get(url, token)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if time.monotonic() > END:
                detail = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                sys.exit(f"{url} does not answer: {error} {detail}")
            time.sleep(1)


print(f"{os.environ['READYZ']}: {read(os.environ['READYZ']).strip()}")
if url := os.environ["METRICS"]:
    file = os.environ["TOKEN_FILE"]
    families = sum(line.startswith("# TYPE ") for line in read(url, Path(file).read_text().strip() if file else "").splitlines())
    if not families:
        sys.exit(f"{url} serves no metric")
    print(f"{url}: {families} metrics")
    if file:
        try:
            get(url, "")
        except urllib.error.HTTPError as refused:
            if refused.code != 401:
                sys.exit(f"{url} answers {refused.code} to a request without a token, not 401")
        else:
            sys.exit(f"{url} serves metrics to a request without a token")
