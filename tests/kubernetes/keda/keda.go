//go:build programs

// Package keda names KEDA's operator, which the suite `zero` builds, so that go.mod keeps its modules.
package keda

import _ "github.com/kedacore/keda/v2/cmd/operator"
