// Solves a random system of linear equations.
package main

import (
	"fmt"
	"net/url"

	"cwasi.dev/functions/function"
	"gonum.org/v1/gonum/mat"
)

const unknownsMax = 2048

func init() { function.Export(answer) }

func main() { function.Main() }

func answer(query url.Values) (string, error) {
	unknowns, err := function.Number(query, "unknowns", unknownsMax)
	if err != nil {
		return "", err
	}
	random, err := function.Random(query)
	if err != nil {
		return "", err
	}
	normal := func(count int) []float64 {
		numbers := make([]float64, count)
		for i := range numbers {
			numbers[i] = random.NormFloat64()
		}
		return numbers
	}
	coefficients := mat.NewDense(unknowns, unknowns, normal(unknowns*unknowns))
	constants := mat.NewVecDense(unknowns, normal(unknowns))
	var solution mat.VecDense
	if err := solution.SolveVec(coefficients, constants); err != nil {
		return "", err
	}
	// Six digits: native code may fuse a multiplication and an addition, which rounds once less.
	return fmt.Sprintf("%.6f", mat.Formatted(&solution)), nil
}
