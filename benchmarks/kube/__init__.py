"""Figures against a real API server and etcd. Nodes are simulated, pods never run: only operator and API server are measured."""
