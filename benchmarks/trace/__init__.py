"""A week on a synthetic fleet, on virtual time: the flow that places units beside simpler rules, for the same jobs and the same outages.

`inputs` draws fleet, outages and jobs from a seed, `rules` and `by_flow` decide, `world` lets it happen, `outcome` sums it up.

See docs/decisions/0209-simulator.md.
"""
