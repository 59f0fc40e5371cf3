"""The commands for people: `diloco`, `kubectl diloco`, and what both show."""
