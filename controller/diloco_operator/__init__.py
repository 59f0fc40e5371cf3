"""The control plane of Decoupled DiLoCo: what decides where learner units run and brings them back.

See docs/decisions/0107-packages-and-images.md.
"""
