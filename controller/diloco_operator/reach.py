"""The program with which `kubectl diloco doctor`, in a learner's pod, tries whether the pod reaches the syncer.

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
"""Opens a connection to the syncer's address as the learner's environment has it, and closes it. Python needs no packages for it."""
