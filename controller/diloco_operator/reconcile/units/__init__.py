"""PURE: the learner units: how their attempts ended, which of them run and where, and which pods go."""
