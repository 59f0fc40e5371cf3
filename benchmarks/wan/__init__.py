"""Four simulated regions on one machine, with delay, loss and a rate between them, and the programs that run across them."""
