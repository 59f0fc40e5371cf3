//go:build tools

// Package tools pins Prometheus, which evaluates the chart's rules and dashboards over series of a running operator.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
