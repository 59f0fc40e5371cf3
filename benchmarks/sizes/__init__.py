"""Benchmarks with models of real sizes, of 64 MiB and more, or that take minutes. `make bench-sizes`."""
