"""The data plane of Decoupled DiLoCo: what trains. It knows nothing of Kubernetes."""
