"""What the syncer says of its job: reports, results, loss history, TensorBoard event files, and the counters of the units."""
