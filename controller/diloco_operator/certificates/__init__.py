"""The certificates of a job: `view` reads the ones that exist (pure), reconcile decides which are needed, and `issuing` makes them."""
