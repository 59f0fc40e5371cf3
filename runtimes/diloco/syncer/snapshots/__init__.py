"""What the syncer keeps on its volume: snapshots and their copies, the fences of units, and the job's early end."""
