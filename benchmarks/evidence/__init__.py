"""`make evidence`: published results, simulated. Each table or figure has a module, which prints a line with all rows and draws a plot."""
