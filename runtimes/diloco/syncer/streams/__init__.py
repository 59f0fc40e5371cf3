"""The learners' streams: their events for the job, the queues of messages to learners, and the sessions that outlive streams."""
