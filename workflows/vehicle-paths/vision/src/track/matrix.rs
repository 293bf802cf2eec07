//! Small dense matrices of a size known at compile time, as much as a Kalman filter needs.

/// `R` rows of `C` columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrix<const R: usize, const C: usize>(pub [[f64; C]; R]);

impl<const R: usize, const C: usize> Matrix<R, C> {
    /// All zero.
    pub const ZERO: Self = Self([[0.0; C]; R]);

    /// Matrix product.
    pub fn times<const K: usize>(&self, other: &Matrix<C, K>) -> Matrix<R, K> {
        let mut out = Matrix::ZERO;
        for (row, line) in out.0.iter_mut().zip(&self.0) {
            for (column, value) in row.iter_mut().enumerate() {
                *value = line.iter().zip(&other.0).map(|(a, b)| a * b[column]).sum();
            }
        }
        out
    }

    /// Sum.
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    /// Difference.
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    /// Every entry multiplied.
    pub fn scaled(&self, factor: f64) -> Self {
        self.zip(self, |a, _| a * factor)
    }

    fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let mut out = *self;
        for (row, line) in out.0.iter_mut().zip(&other.0) {
            row.iter_mut().zip(line).for_each(|(a, b)| *a = f(*a, *b));
        }
        out
    }

    /// Rows and columns swapped.
    pub fn transposed(&self) -> Matrix<C, R> {
        let mut out = Matrix::ZERO;
        for (r, line) in self.0.iter().enumerate() {
            for (c, value) in line.iter().enumerate() {
                out.0[c][r] = *value;
            }
        }
        out
    }
}

impl<const N: usize> Matrix<N, N> {
    /// The identity.
    pub fn identity() -> Self {
        let mut out = Self::ZERO;
        (0..N).for_each(|k| out.0[k][k] = 1.0);
        out
    }

    /// The inverse by Gauss-Jordan with pivoting; `None` when singular.
    pub fn inverse(&self) -> Option<Self> {
        let (mut left, mut right) = (*self, Self::identity());
        for k in 0..N {
            let pivot =
                (k..N).max_by(|a, b| left.0[*a][k].abs().total_cmp(&left.0[*b][k].abs()))?;
            if left.0[pivot][k].abs() < 1e-12 || !left.0[pivot][k].is_finite() {
                return None;
            }
            left.0.swap(k, pivot);
            right.0.swap(k, pivot);
            let divisor = left.0[k][k];
            left.0[k].iter_mut().chain(&mut right.0[k]).for_each(|value| *value /= divisor);
            for row in (0..N).filter(|row| *row != k) {
                let factor = left.0[row][k];
                for column in 0..N {
                    left.0[row][column] -= factor * left.0[k][column];
                    right.0[row][column] -= factor * right.0[k][column];
                }
            }
        }
        Some(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_times_itself_is_the_identity() {
        let m = Matrix([[0.0, 2.0, 1.0], [1.0, 1.0, 0.0], [3.0, 0.0, 1.0]]);
        let one = m.times(&m.inverse().unwrap());
        let off = one.minus(&Matrix::identity());
        assert!(off.0.iter().flatten().all(|value| value.abs() < 1e-12));
        assert!(Matrix([[1.0, 2.0], [2.0, 4.0]]).inverse().is_none());
    }
}
