"""Figures with a real API server and etcd. Nodes are simulated and pods never run: only operator and API server are measured."""
