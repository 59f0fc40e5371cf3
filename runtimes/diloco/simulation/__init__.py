"""Jobs on virtual time: the coordinator of a real job, with learner units that are state machines."""
