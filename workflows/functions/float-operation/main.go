// Sine, cosine and square root of a number.
package main

import (
	"fmt"
	"math"
	"net/url"

	"cwasi.dev/functions/function"
)

const most = 1_000_000_000

func init() { function.Export(answer) }

func main() { function.Main() }

func answer(query url.Values) (string, error) {
	n, err := function.Number(query, "n", most)
	if err != nil {
		return "", err
	}
	number := float64(n)
	return fmt.Sprintf("Number: %f\nSin: %f\nCos: %f\nSqrt: %f", number, math.Sin(number), math.Cos(number),
		math.Sqrt(number)), nil
}
