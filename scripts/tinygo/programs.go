//go:build programs

// Package programs names what scripts/tinygo.sh builds, so that go.sum has the digests of all that it needs.
package programs

import _ "github.com/tinygo-org/tinygo"
