"""`make evidence`: the figures that the simulator has beside published ones, and their plots."""
