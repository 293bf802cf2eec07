//! From a mask to blobs: speckles out, gaps closed, connected parts collected, parts of one
//! object joined.

use super::mask::OBJECT;

/// Least area of a blob in half pixels.
const LEAST_AREA: u32 = 24;
/// Least area of a part of a blob.
const LEAST_PART: u32 = 5;
/// Most blobs looked at in a picture; the largest are kept.
const MAX_BLOBS: usize = 400;
/// Parts further than this from a blob are not joined to it, half pixels.
const MAX_JOIN_REACH: usize = 4;

/// A connected group of object pixels, in half pixels; `right` and `bottom` are outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// First column.
    pub left: usize,
    /// First row.
    pub top: usize,
    /// Column after the last.
    pub right: usize,
    /// Row after the last.
    pub bottom: usize,
    /// Object pixels in it.
    pub area: u32,
}

impl Blob {
    fn join(&mut self, other: &Self) {
        self.left = self.left.min(other.left);
        self.top = self.top.min(other.top);
        self.right = self.right.max(other.right);
        self.bottom = self.bottom.max(other.bottom);
        self.area += other.area;
    }

    /// Width in half pixels.
    pub fn width(&self) -> usize {
        self.right - self.left
    }

    /// Height in half pixels.
    pub fn height(&self) -> usize {
        self.bottom - self.top
    }
}

/// The blobs of a mask.
pub fn blobs(pixels: &[u8], width: usize, height: usize) -> Vec<Blob> {
    let object: Vec<u8> = pixels.iter().map(|pixel| u8::from(*pixel == OBJECT)).collect();
    let solid = count_filter(&object, width, height, (1, 1), 6);
    let grown = count_filter(&solid, width, height, (2, 2), 1);
    let closed = count_filter(&grown, width, height, (2, 2), 25);
    let kept: Vec<u8> = closed.iter().zip(&solid).map(|(a, b)| a | b).collect();
    let mut found = join_parts(&components(&kept, width));
    found.retain(|blob| blob.area >= LEAST_AREA && blob.width() >= 4 && blob.height() >= 4);
    found.sort_by_key(|blob| std::cmp::Reverse(blob.area));
    found.truncate(MAX_BLOBS);
    found
}

/// 1 where at least `least` pixels are set in the box of this reach; outside counts as 0.
fn count_filter(
    plane: &[u8],
    width: usize,
    height: usize,
    reach: (usize, usize),
    least: u32,
) -> Vec<u8> {
    let mut rows = vec![0u32; width * height];
    for (sums, line) in rows.chunks_exact_mut(width).zip(plane.chunks_exact(width)) {
        let mut sum: u32 = line.iter().take(reach.0).map(|value| u32::from(*value)).sum();
        for column in 0..width {
            sum += line.get(column + reach.0).map_or(0, |value| u32::from(*value));
            sums[column] = sum;
            if column >= reach.0 {
                sum -= u32::from(line[column - reach.0]);
            }
        }
    }
    let mut out = vec![0; width * height];
    let mut sums = vec![0u32; width];
    let add = |sums: &mut [u32], row: usize| {
        sums.iter_mut().zip(&rows[row * width..][..width]).for_each(|(sum, value)| *sum += value);
    };
    (0..reach.1.min(height)).for_each(|row| add(&mut sums, row));
    for row in 0..height {
        if row + reach.1 < height {
            add(&mut sums, row + reach.1);
        }
        for (value, sum) in out[row * width..][..width].iter_mut().zip(&sums) {
            *value = u8::from(*sum >= least);
        }
        if row >= reach.1 {
            let gone = &rows[(row - reach.1) * width..][..width];
            sums.iter_mut().zip(gone).for_each(|(sum, value)| *sum -= value);
        }
    }
    out
}

/// A run of set pixels in a row, and the component it belongs to.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    end: usize,
    id: usize,
}

/// The connected parts of a plane.
struct Components {
    blobs: Vec<Blob>,
    /// By row; a run's id is an index into `blobs`.
    rows: Vec<Vec<Run>>,
}

/// Connected components (eight neighbours) by joining runs of neighbouring rows.
fn components(plane: &[u8], width: usize) -> Components {
    let mut parent: Vec<usize> = Vec::new();
    let mut blobs: Vec<Blob> = Vec::new();
    let mut rows: Vec<Vec<Run>> = Vec::new();
    for (row, line) in plane.chunks_exact(width).enumerate() {
        let mut here = Vec::new();
        for (start, end) in runs(line) {
            let area = (end - start) as u32;
            let mut root = blobs.len();
            blobs.push(Blob { left: start, top: row, right: end, bottom: row + 1, area });
            parent.push(root);
            let above = rows.last().map_or(&[][..], Vec::as_slice);
            for run in above.iter().filter(|run| run.start <= end && run.end >= start) {
                let other = root_of(&mut parent, run.id);
                if other != root {
                    let lost = blobs[root];
                    blobs[other].join(&lost);
                    parent[root] = other;
                    root = other;
                }
            }
            here.push(Run { start, end, id: root });
        }
        rows.push(here);
    }
    let mut kept = Vec::new();
    let place: Vec<usize> = (0..blobs.len())
        .map(|id| {
            let is_root = parent[id] == id;
            kept.extend(is_root.then(|| blobs[id]));
            kept.len().saturating_sub(1)
        })
        .collect();
    for run in rows.iter_mut().flatten() {
        run.id = place[root_of(&mut parent, run.id)];
    }
    Components { blobs: kept, rows }
}

fn runs(line: &[u8]) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut start = None;
    for (column, value) in line.iter().enumerate() {
        match (start, *value != 0) {
            (None, true) => start = Some(column),
            (Some(first), false) => {
                out.push((first, column));
                start = None;
            }
            _ => {}
        }
    }
    out.extend(start.map(|first| (first, line.len())));
    out
}

fn root_of(parent: &mut [usize], mut id: usize) -> usize {
    while parent[id] != id {
        parent[id] = parent[parent[id]];
        id = parent[id];
    }
    id
}

/// Joins small parts to the larger component that they nearly touch: a wheel, a roof, a shoe.
/// What counts is the distance from the component itself. Its box reaches further: the corners of
/// a large vehicle's box show road on which others drive and walk.
fn join_parts(parts: &Components) -> Vec<Blob> {
    let mut order: Vec<usize> = (0..parts.blobs.len()).collect();
    order.retain(|id| parts.blobs[*id].area >= LEAST_PART);
    order.sort_by_key(|id| std::cmp::Reverse(parts.blobs[*id].area));
    order.truncate(MAX_BLOBS);
    let mut whole: Vec<Option<Blob>> = vec![None; parts.blobs.len()];
    let mut out = Vec::new();
    for id in order {
        let part = parts.blobs[id];
        let touches = |(other, gap): &(usize, usize)| {
            whole[*other].as_ref().is_some_and(|whole| touches(whole, &part, *gap))
        };
        let near = neighbours(parts, &part);
        let nearest = near.into_iter().filter(touches).min_by_key(|(_, gap)| *gap);
        let encloses = |id: &usize| whole[*id].as_ref().is_some_and(|whole| encloses(whole, &part));
        let owner = nearest.map(|(id, _)| id).or_else(|| out.iter().copied().find(encloses));
        match owner {
            Some(owner) => {
                if let Some(whole) = &mut whole[owner] {
                    whole.join(&part);
                }
            }
            None => {
                whole[id] = Some(part);
                out.push(id);
            }
        }
    }
    out.into_iter().filter_map(|id| whole[id]).collect()
}

/// Components with pixels near a part's box, and how far off the nearest pixel is.
fn neighbours(parts: &Components, part: &Blob) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    let first = part.top.saturating_sub(MAX_JOIN_REACH);
    let last = (part.bottom + MAX_JOIN_REACH).min(parts.rows.len());
    for (row, runs) in (first..).zip(&parts.rows[first..last]) {
        let down = part.top.saturating_sub(row).max(row.saturating_sub(part.bottom - 1));
        for run in runs {
            let across =
                part.left.saturating_sub(run.end - 1).max(run.start.saturating_sub(part.right - 1));
            let gap = across.max(down);
            if gap > MAX_JOIN_REACH {
                continue;
            }
            match out.iter_mut().find(|(id, _)| *id == run.id) {
                Some((_, nearest)) => *nearest = gap.min(*nearest),
                None => out.push((run.id, gap)),
            }
        }
    }
    out
}

/// Whether a part this far off completes a blob.
fn touches(large: &Blob, small: &Blob, gap: usize) -> bool {
    let size = large.width().min(large.height());
    let reach = (2 + size / 24).min(MAX_JOIN_REACH);
    let mut both = *large;
    both.join(small);
    // A part completes a box; what would stretch it far is somebody else.
    let stretched = both.width() * both.height() * 10 > large.width() * large.height() * 14;
    is_part(large, small) && gap <= reach && !stretched
}

/// Whether a part within a blob's box is a piece of it, cut off by a side that looks like the
/// road: a wheel, a lamp. Somebody walking beside a vehicle is slimmer.
fn encloses(large: &Blob, small: &Blob) -> bool {
    let inside = small.left >= large.left
        && small.right <= large.right
        && small.top >= large.top
        && small.bottom <= large.bottom;
    inside && is_part(large, small) && small.width() * 5 > small.height() * 3
}

fn is_part(large: &Blob, small: &Blob) -> bool {
    small.area * 4 < large.area
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(rows: &[&str]) -> (Vec<u8>, usize, usize) {
        let cells = rows.iter().flat_map(|row| row.bytes().map(|byte| u8::from(byte == b'#')));
        (cells.collect(), rows[0].len(), rows.len())
    }

    #[test]
    fn a_u_shape_is_one_component_and_a_dot_another() {
        let (cells, width, _) = plane(&["#.#..#", "#.#...", "###..."]);
        let mut found = components(&cells, width).blobs;
        found.sort_by_key(|blob| blob.left);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Blob { left: 0, top: 0, right: 3, bottom: 3, area: 7 });
        assert_eq!(found[1].area, 1);
    }

    #[test]
    fn counting_treats_the_outside_as_empty() {
        let (cells, width, height) = plane(&["###", "###", "###"]);
        let full = count_filter(&cells, width, height, (1, 1), 9);
        assert_eq!(full, [0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(count_filter(&cells, width, height, (1, 1), 4), [1; 9]);
    }

    #[test]
    fn a_small_part_joins_and_neighbours_do_not() {
        let mut rows: Vec<String> = Vec::new();
        for row in 0..30 {
            let line: String = (0..90)
                .map(|column| {
                    // A vehicle seen from above at an angle, its wheel and its lamp, a car
                    // beside it, and somebody in the empty corner of the vehicle's box.
                    let vehicle = row < 20 && (row..row + 25).contains(&column);
                    let wheel = (21..24).contains(&row) && (22..28).contains(&column);
                    let car = row < 20 && (50..80).contains(&column);
                    let person = (14..20).contains(&row) && (1..4).contains(&column);
                    let lamp = (1..4).contains(&row) && (38..42).contains(&column);
                    if vehicle || wheel || lamp || car || person { '#' } else { '.' }
                })
                .collect();
            rows.push(line);
        }
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        let (cells, width, _) = plane(&rows);
        let blobs = join_parts(&components(&cells, width));
        assert_eq!(blobs.len(), 3, "{blobs:?}");
        assert!(blobs.iter().any(|blob| (blob.left, blob.bottom) == (0, 24)), "{blobs:?}");
        assert!(blobs.iter().any(|blob| (blob.left, blob.right) == (1, 4)), "{blobs:?}");
    }
}
