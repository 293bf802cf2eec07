// Package function turns a function of a query into a module of CWASI and into a native server. Both answer 200 with the
// function's text, or 500 with its error, as those of the operator paper do.
package function

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
)

// Function is the text for a query, or why there is none.
type Function func(query url.Values) (string, error)

var exported Function

// Export says which function this program is; called by init.
func Export(function Function) { exported = function }

// Answer runs the function with the query of a URL: status and body.
func answer(query string) (int, []byte) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return 500, []byte(err.Error())
	}
	text, err := exported(values)
	if err != nil {
		return 500, []byte(err.Error())
	}
	return 200, []byte(text)
}

// Number is the first value of a name as a whole number from 1 to most.
func Number(query url.Values, name string, most int) (int, error) {
	if !query.Has(name) {
		return 0, fmt.Errorf("the query has no `%s`", name)
	}
	number, err := strconv.Atoi(query.Get(name))
	if err != nil || number < 1 || number > most {
		return 0, fmt.Errorf("`%s` must be a number from 1 to %d, not `%s`", name, most, query.Get(name))
	}
	return number, nil
}

// Random is a source of random numbers: with `seed` in the query always the same ones.
func Random(query url.Values) (*rand.Rand, error) {
	if !query.Has("seed") {
		return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), nil
	}
	seed, err := strconv.ParseUint(query.Get("seed"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("`seed` must be a number, not `%s`", query.Get("seed"))
	}
	return rand.New(rand.NewPCG(seed, 0)), nil
}
