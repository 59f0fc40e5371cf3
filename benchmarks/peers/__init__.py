"""Other systems beside ours. Each is measured together with ours in one run. See docs/results/peers.md."""
