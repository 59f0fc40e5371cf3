//go:build tools

// Package tools pins etcd, the store of the tests' Kubernetes control plane.
package tools

import _ "go.etcd.io/etcd/server/v3"
