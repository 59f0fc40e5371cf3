"""The syncer's decisions as one state machine: events in, actions out. Pure: time comes in, nothing is awaited."""
