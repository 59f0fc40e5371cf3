"""Figures against a real API server and etcd. Nodes pretend and pods never run: what is measured is the operator and the API server."""
