"""What a machine with a GPU shows of this project: the parts that `hack/device/run.sh` runs. docs/results/gpu.md says how."""
