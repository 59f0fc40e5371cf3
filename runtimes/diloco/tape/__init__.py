"""The tape of a job: what happened, in the order in which it happened, and what its merges made of the parameters."""
