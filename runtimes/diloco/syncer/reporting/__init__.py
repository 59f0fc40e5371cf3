"""What the syncer reports about its job: reports, results, loss history, TensorBoard event files, and the counters of the units."""
