//go:build tools

// Package tools pins CoreDNS, which gives pods on the tests' real nodes their names.
package tools

import _ "github.com/coredns/coredns"
