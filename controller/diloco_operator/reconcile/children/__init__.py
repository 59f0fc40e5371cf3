"""PURE: the objects that a job needs: configuration, certificates, the syncer and the pods of both kinds."""
