//go:build programs

// Package keda names KEDA's operator and metrics server, which keda.sh builds, so that go.mod keeps their modules.
package keda

import (
	_ "github.com/kedacore/keda/v2/cmd/adapter"
	_ "github.com/kedacore/keda/v2/cmd/operator"
)
