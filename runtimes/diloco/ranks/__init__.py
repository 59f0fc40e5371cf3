"""Units of several processes: the side channel between their ranks, and what all of them do at the same local step."""
