//! Tables of text: columns as wide as their widest cell, as `ctr` prints them.

use std::fmt;

use cwasi_workflow::visible;

/// Spaces between two columns.
const GAP: usize = 2;

#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    #[must_use]
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).into()] }
    }

    /// Adds a row. No cell has control characters then, so that each row is a line.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| visible::word(cell).into_owned()).collect());
    }

    /// True if it has only headings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default() + GAP
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            let line: String = cells.map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
