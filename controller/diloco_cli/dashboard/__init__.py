"""The dashboard: pages of jobs and of the fleet, served to a browser on the machine of the person who runs the command.

See docs/decisions/0274-dashboard.md.
"""
