"""PURE: the learner units: how their attempts ended, which units run and where, and which pods are deleted."""
