//go:build programs

// Package programs names what scripts/helm.sh builds, so that go.sum has the digests of all that it needs.
package programs

import _ "helm.sh/helm/v3/cmd/helm"
