"""The learners' streams: what comes on them as events for the job, what goes out on them, and the sessions that outlive them."""
