"""Four regions of one machine, with delay, loss and a rate between them, and what runs across them."""
