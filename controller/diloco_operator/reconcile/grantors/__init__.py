"""Who grants nodes to delegated units: an adapter for each grantor, behind one interface, in one registry. Pure.

Nothing outside this package depends on which grantor it is. `interface` says what may differ, `registry` has all grantors, `kueue` and
`autoscaler` are the adapters, and modules called `_view` read the grantors' objects.
"""
