"""The error for a missing or wrong cluster configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """No cluster was found, or its configuration is wrong. The message is human-readable."""
