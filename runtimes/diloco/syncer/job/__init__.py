"""The job at work: one task takes events, gives them to the driver and the other parts that they concern, and carries out the effects."""
