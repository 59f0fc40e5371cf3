//go:build tools

// Package tools pins Helm 3, which a test of the chart runs beside Helm 4.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
