"""The job at work: one task takes events, gives them to the driver and to whom else they concern, and carries out what follows."""
