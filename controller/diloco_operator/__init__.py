"""The control plane of Decoupled DiLoCo: it decides where learner units run, and brings them back.

See docs/decisions/0107-packages-and-images.md.
"""
