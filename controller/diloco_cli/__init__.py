"""The commands for people: `diloco`, `kubectl diloco`, the commands that both have, and what they show."""
