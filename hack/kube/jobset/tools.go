//go:build tools

// Package tools pins JobSet, which a benchmark compares with.
package tools

import _ "sigs.k8s.io/jobset"
