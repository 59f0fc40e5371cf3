"""A learner in a job of ours. The environment's `DILOCO_*` variables name the job."""

from __future__ import annotations

import diloco.torch
from diloco.trainers.byte_lm_torch import canonical_names

from benchmarks.peers.setting import BATCH, MODEL, TOKENS
from benchmarks.peers.training import Learner


def main() -> None:
    learner = Learner()
    with diloco.torch.join(learner.model, optimizer=learner.optimizer, canonical=canonical_names(MODEL)) as session:
        for windows in session.batches(learner.corpus.batch, BATCH):
            loss = learner.train(windows)
            session.step(tokens=TOKENS, loss=loss)
            learner.note_step()
        if session.done:
            learner.note_loss()


if __name__ == "__main__":
    main()
