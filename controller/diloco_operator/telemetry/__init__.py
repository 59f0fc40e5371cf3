"""What the syncers of all jobs report: one stream for each, read and bounded. Nothing is decided here."""
