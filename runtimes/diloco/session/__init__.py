"""What a training program holds of its job: the calls of its loop, above the learner, its ranks and its peers."""
