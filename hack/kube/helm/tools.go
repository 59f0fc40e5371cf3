//go:build tools

// Package tools pins Helm, which the chart's tests run.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
