"""Other systems beside ours, each measured with ours in one run. See docs/results/peers.md."""
