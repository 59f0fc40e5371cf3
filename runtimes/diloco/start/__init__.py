"""The model that a job begins with, `spec.startFrom`: a snapshot of another job, or a safetensors model of any program.

`source` finds the model and reads its tensors piece by piece. `fit` compares it with the job's model, and fills the job's parameters.

See docs/decisions/0139-model-in-and-out.md.
"""
