"""Snapshots of a job and stored states of its units: written whole, copied to an object store, and checked when they are read."""
