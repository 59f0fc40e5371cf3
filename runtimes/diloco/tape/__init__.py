"""The tape of a job: what happened to it, in order, with the merged outer gradients, so that merges can be repeated."""
