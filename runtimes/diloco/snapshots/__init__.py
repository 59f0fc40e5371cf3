"""Snapshots of a job and stored states of its units: complete or invisible, copied to an object store, and checked when read."""
