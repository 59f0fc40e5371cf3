"""The reports of all jobs' syncers: one stream for each, read and bounded. Nothing is decided here."""
