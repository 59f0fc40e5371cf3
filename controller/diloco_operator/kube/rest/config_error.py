"""What can be wrong with the way to a cluster."""

from __future__ import annotations


class ConfigError(Exception):
    """No cluster is to be found, or its configuration is wrong. The message is for people."""
