"""Real jobs with failures, uneven speeds and narrow links, beside what the simulator had said of them."""
