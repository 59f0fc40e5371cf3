"""The figures that docs/results quotes; `python -m benchmarks [name...]`."""
