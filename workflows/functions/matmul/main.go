// The product of two random square matrices.
package main

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"

	"cwasi.dev/functions/function"
)

const dimensionsMax = 2048

type matrix [][]float64

func init() { function.Export(answer) }

func main() { function.Main() }

func answer(query url.Values) (string, error) {
	dimensions, err := function.Number(query, "dimensions", dimensionsMax)
	if err != nil {
		return "", err
	}
	random, err := function.Random(query)
	if err != nil {
		return "", err
	}
	product := multiply(randomMatrix(random, dimensions), randomMatrix(random, dimensions))
	var body strings.Builder
	for _, row := range product {
		fmt.Fprintf(&body, "%.6f\n", row)
	}
	return body.String(), nil
}

func randomMatrix(random *rand.Rand, dimensions int) matrix {
	made := make(matrix, dimensions)
	for i := range made {
		made[i] = make([]float64, dimensions)
		for j := range made[i] {
			made[i][j] = random.Float64()
		}
	}
	return made
}

func multiply(a, b matrix) matrix {
	product := make(matrix, len(a))
	for i := range product {
		product[i] = make([]float64, len(b[0]))
		for j := range product[i] {
			for k := range b {
				product[i][j] += a[i][k] * b[k][j]
			}
		}
	}
	return product
}
