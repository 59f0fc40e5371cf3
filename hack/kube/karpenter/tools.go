//go:build tools

// Package tools pins Karpenter with its kwok provider, the autoscaler of the tests.
package tools

import _ "sigs.k8s.io/karpenter/kwok"
