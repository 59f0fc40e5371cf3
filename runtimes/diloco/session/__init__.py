"""The session: what a training program calls in its loop. It hides the connection, the other ranks of the unit, and its peers."""
