"""PURE: the objects that a job needs, as they should be: configuration, certificates, the syncer and the pods of both kinds."""
