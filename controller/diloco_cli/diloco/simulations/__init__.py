"""The commands of `diloco simulate`."""
