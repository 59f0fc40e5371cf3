"""Benchmarks on models of real sizes: memory of 64 MiB and more, or minutes of time. `make bench-sizes`."""
