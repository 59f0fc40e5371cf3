"""What holds for every test."""

from hypothesis import settings

# No time limit for an example: a busy machine is not a failure. The same examples in every run: a failure can be repeated by anybody.
settings.register_profile("diloco", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("diloco")
