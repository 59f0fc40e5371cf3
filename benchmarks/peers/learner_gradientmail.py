"""A learner of GradientMail. The environment variable STORE names its store, an S3-compatible server.

`delta_dtype` halves what a learner sends, as our BFloat16 does. `poll_interval` is shorter than its default of 1 s, which is for longer
steps.
"""

from __future__ import annotations

import os
import time
from typing import Any

import boto3
import gradientmail
from botocore.exceptions import EndpointConnectionError
from gradientmail.events import Event, RoundCommitted, RoundRecorded

from benchmarks.peers.setting import OUTER_MOMENTUM, OUTER_RATE, SYNC_INTERVAL, TOKENS
from benchmarks.peers.training import Learner

STORE = "PEERS_STORE"
BUCKET = "run"
_POLL = 0.05
_PATIENCE = 120.0


def make_bucket(url: str) -> None:
    """Create the bucket as soon as the server answers."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            boto3.client("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)
            return
        except EndpointConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL)


def main() -> None:
    learner = Learner()
    make_bucket(os.environ[STORE])
    mailbox = gradientmail.S3Mailbox(bucket=BUCKET, prefix="peers", endpoint_url=os.environ[STORE])

    def note(event: Event) -> None:
        if isinstance(event, RoundCommitted):
            learner.note_closed()
        if isinstance(event, RoundRecorded | RoundCommitted):
            for participant in event.record.participants:
                learner.note_merged(participant.learner)

    def step(windows: Any) -> int:
        learner.train(windows)
        learner.note_step()
        return TOKENS

    session = gradientmail.Session(
        learner.model,
        algorithm=gradientmail.DiLoCo(
            sync_every=SYNC_INTERVAL,
            fragments=SYNC_INTERVAL,
            outer_lr=OUTER_RATE,
            outer_momentum=OUTER_MOMENTUM,
            delta_dtype="BF16",
        ),
        mailbox=mailbox,
        node_id=learner.name,
        poll_interval=_POLL,
        callbacks=(gradientmail.log_events, note),
    )
    session.run(step, learner.batches())
    gradientmail.align(learner.model, mailbox=mailbox)
    learner.note_loss()


if __name__ == "__main__":
    main()
