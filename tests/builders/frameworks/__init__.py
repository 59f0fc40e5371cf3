"""Frameworks for the tests of what every adapter must do, see `tests/frameworks/contract`."""
