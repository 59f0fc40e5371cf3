//go:build tools

// Package tools pins Kueue, which admits pod groups in the tests.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
