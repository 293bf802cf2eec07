//! The tables of `docs/papers.md`, which quote the record: the claims' ratios, and every table and figure in a row with
//! a verdict, which a person writes.

use std::collections::HashMap;

/// The page with the numbers of a record. Rows that the record lacks, verdicts, and all else stay.
///
/// `claims` and `exhibits` are tables in Markdown as a run writes them.
#[must_use]
pub fn quote(page: &str, claims: &str, exhibits: &str) -> String {
    let claims: HashMap<_, _> = claims.lines().filter_map(|row| Some((claim(row)?, row))).collect();
    let exhibits: HashMap<_, _> =
        exhibits.lines().filter_map(|row| Some((exhibit(row)?, row))).collect();
    let mut quoted = String::new();
    for line in page.lines() {
        let of_claim = || Some((*claims.get(&claim(line)?)?).to_owned());
        let of_exhibit = || with_verdict(exhibits.get(&exhibit(line)?)?, line);
        let row = of_claim().or_else(of_exhibit);
        quoted.push_str(row.as_deref().unwrap_or(line));
        quoted.push('\n');
    }
    quoted
}

fn cells(row: &str) -> Option<Vec<&str>> {
    Some(row.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect())
}

/// Claim, the paper's number and the exhibit, of a row of claims.
fn claim(row: &str) -> Option<(&str, &str, &str)> {
    let [claim, theirs, _, exhibit] = cells(row)?[..] else { return None };
    Some((claim, theirs, exhibit))
}

/// The exhibit's command, of a row of a table or figure.
fn exhibit(row: &str) -> Option<&str> {
    let cells = cells(row)?;
    let command = *cells.last()?;
    (cells.len() > 4 && command.starts_with("`EXHIBIT=")).then_some(command)
}

/// The record's row with the verdict of the page's row, which stands before the command.
fn with_verdict(record: &str, page: &str) -> Option<String> {
    let (page, record) = (cells(page)?, cells(record)?);
    let (verdict, (command, numbers)) = (page.get(page.len() - 2)?, record.split_last()?);
    Some(format!("| {} | {verdict} | {command} |", numbers.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/papers.md");
    const CLAIMS: &str = include_str!("../record/claims.md");
    const EXHIBITS: &str = include_str!("../record/exhibits.md");

    #[test]
    fn the_page_quotes_the_record() {
        assert!(quote(PAGE, CLAIMS, EXHIBITS) == PAGE, "scripts/papers.sh record quotes it anew");
    }

    #[test]
    fn every_row_of_the_record_is_on_the_page() {
        for row in CLAIMS.lines().filter(|row| row.contains("`EXHIBIT=")) {
            assert!(PAGE.lines().any(|line| line == row), "{row}");
        }
        for row in EXHIBITS.lines().filter_map(exhibit) {
            let verdict =
                |line: &str| cells(line).is_some_and(|cells| cells[cells.len() - 2].len() > 3);
            let is_row = |line: &str| exhibit(line) == Some(row) && verdict(line);
            assert!(PAGE.lines().any(is_row), "{row}: its row needs a verdict before the command");
        }
    }

    #[test]
    fn numbers_change_and_verdicts_stay() {
        let page = "text\n\
                    | a claim | 2.0 | – | `EXHIBIT=a` |\n\
                    | cwasi: 1 | about | 2 | – | old | 3 | 0.1 | holds: so | `EXHIBIT=a` |\n\
                    | cwasi: 2 | about | – | – | – | – | – | – | `EXHIBIT=b` |\n";
        let claims = "| claim | theirs |\n| a claim | 2.0 | 1.50 | `EXHIBIT=a` |\n";
        let exhibits = "| cwasi: 1 | about | 2 | 5 | new | 30 | < 0.001 | `EXHIBIT=a` |\n";
        let expected = "text\n\
                        | a claim | 2.0 | 1.50 | `EXHIBIT=a` |\n\
                        | cwasi: 1 | about | 2 | 5 | new | 30 | < 0.001 | holds: so | `EXHIBIT=a` |\n\
                        | cwasi: 2 | about | – | – | – | – | – | – | `EXHIBIT=b` |\n";
        assert_eq!(quote(page, claims, exhibits), expected);
        assert_eq!(quote(expected, claims, exhibits), expected);
    }
}
