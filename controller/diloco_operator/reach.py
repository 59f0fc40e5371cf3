"""How it is tried whether a pod of a learner reaches the syncer: by a program that `kubectl diloco doctor` runs in it.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

from diloco import contract

REACH_SECONDS = 5.0
"""How long the connection may take."""
_CONNECT = (
    f"import os, socket; host, _, port = os.environ['{contract.ENV_SYNCER_ADDRESS}'].rpartition(':'); "
    f"socket.create_connection((host.strip('[]'), int(port)), {REACH_SECONDS}).close()"
)
REACH_COMMAND = ("python3", "-c", _CONNECT)
"""Opens a connection to where the learner finds the syncer, and closes it. Its Python needs no packages."""
