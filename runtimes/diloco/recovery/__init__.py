"""How a new process of a unit gets the state of a peer: parameters, the inner optimizer's state, and what else the program hands over.

See docs/decisions/0250-state-of-a-peer.md.
"""
