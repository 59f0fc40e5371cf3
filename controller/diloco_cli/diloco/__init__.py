"""The commands of `diloco`."""
