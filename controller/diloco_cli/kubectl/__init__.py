"""The commands of `kubectl diloco`."""
