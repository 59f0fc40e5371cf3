"""Who grants nodes to delegated units: an adapter for each, behind one interface, in one registry. Pure.

Nothing outside this package depends on which grantor it is: `interface` says what may differ, `registry` has all of them. `kueue` and
`autoscaler` are the adapters, and the modules called `_view` read the objects of others.
"""
