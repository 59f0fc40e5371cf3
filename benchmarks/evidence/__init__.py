"""`make evidence`: what was published, simulated, a module for each table or figure; its line has the rows, and it draws the plot."""
