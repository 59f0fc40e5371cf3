"""Real jobs with failures, uneven speeds and narrow links, beside what the simulator predicted for them."""
