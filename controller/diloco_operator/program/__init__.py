"""The program `diloco-operator`."""
