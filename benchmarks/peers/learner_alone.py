"""The loop of all learners without an exchange."""

from __future__ import annotations

from benchmarks.peers.training import Learner


def main() -> None:
    learner = Learner()
    for windows in learner.batches():
        learner.train(windows)
        learner.note_step()
    learner.note_loss()


if __name__ == "__main__":
    main()
