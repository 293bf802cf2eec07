//! The cheapest one-to-one assignment (Hungarian method with potentials).

/// For each row the column assigned to it. A pair whose cost is not below `limit` is never made.
/// Every row of `costs` must have the same length.
pub fn assign(costs: &[Vec<f64>], limit: f64) -> Vec<Option<usize>> {
    let (rows, columns) = (costs.len(), costs.first().map_or(0, Vec::len));
    if columns == 0 {
        return vec![None; rows];
    }
    // One private column per row at the price of the limit: choosing it means "not assigned".
    let width = columns + rows;
    let cost = |row: usize, column: usize| -> f64 {
        if column < columns { costs[row][column].min(limit * 4.0) } else { limit }
    };
    let mut row_price = vec![0.0; rows + 1];
    let mut column_price = vec![0.0; width + 1];
    let mut taken_by = vec![0usize; width + 1];
    for row in 1..=rows {
        taken_by[0] = row;
        let mut at = 0;
        let mut cheapest = vec![f64::INFINITY; width + 1];
        let mut came_from = vec![0usize; width + 1];
        let mut done = vec![false; width + 1];
        while taken_by[at] != 0 {
            done[at] = true;
            let here = taken_by[at];
            let (mut step, mut next) = (f64::INFINITY, 0);
            for column in (1..=width).filter(|column| !done[*column]) {
                let reduced = cost(here - 1, column - 1) - row_price[here] - column_price[column];
                if reduced < cheapest[column] {
                    cheapest[column] = reduced;
                    came_from[column] = at;
                }
                if cheapest[column] < step {
                    step = cheapest[column];
                    next = column;
                }
            }
            for column in 0..=width {
                if done[column] {
                    row_price[taken_by[column]] += step;
                    column_price[column] -= step;
                } else {
                    cheapest[column] -= step;
                }
            }
            at = next;
        }
        while at != 0 {
            taken_by[at] = taken_by[came_from[at]];
            at = came_from[at];
        }
    }
    let mut out = vec![None; rows];
    for column in 1..=columns {
        let row = taken_by[column];
        if row != 0 && costs[row - 1][column - 1] < limit {
            out[row - 1] = Some(column - 1);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_counts_not_the_single_best_pair() {
        let costs = vec![vec![1.0, 2.0], vec![1.5, 9.0]];
        assert_eq!(assign(&costs, 100.0), [Some(1), Some(0)]);
    }

    #[test]
    fn expensive_pairs_stay_apart() {
        let costs = vec![vec![5.0, f64::INFINITY], vec![50.0, 50.0], vec![f64::INFINITY, 3.0]];
        assert_eq!(assign(&costs, 10.0), [Some(0), None, Some(1)]);
        assert_eq!(assign(&[], 1.0), []);
        assert_eq!(assign(&[vec![], vec![]], 1.0), [None, None]);
    }
}
