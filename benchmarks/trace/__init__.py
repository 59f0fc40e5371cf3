"""A week on a synthetic fleet, on virtual time: the flow that places units, and simpler rules for comparison, on the same jobs and outages.

`inputs` draws fleet, outages and jobs from a seed, `rules` and `by_flow` decide, `world` simulates, and `outcome` sums up.

See docs/decisions/0209-simulator.md.
"""
