//! From a mask to blobs: speckles out, gaps closed, connected parts collected, parts of one
//! object joined.

use super::mask::OBJECT;

/// Least area of a blob in half pixels.
const LEAST_AREA: u32 = 24;
/// Most blobs looked at in a picture; the largest are kept.
const MAX_BLOBS: usize = 400;
/// Parts further than this from a blob are not joined to it, half pixels.
const MAX_JOIN_REACH: usize = 8;

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
    let mut found = components(&kept, width, height);
    join_parts(&mut found);
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
struct Run {
    start: usize,
    end: usize,
    id: usize,
}

/// Connected components (eight neighbours) by joining runs of neighbouring rows.
fn components(plane: &[u8], width: usize, height: usize) -> Vec<Blob> {
    let mut parent: Vec<usize> = Vec::new();
    let mut blobs: Vec<Blob> = Vec::new();
    let mut above: Vec<Run> = Vec::new();
    for row in 0..height {
        let mut here = Vec::new();
        for (start, end) in runs(&plane[row * width..][..width]) {
            let piece = Blob {
                left: start,
                top: row,
                right: end,
                bottom: row + 1,
                area: (end - start) as u32,
            };
            let id = blobs.len();
            blobs.push(piece);
            parent.push(id);
            let mut root = id;
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
        above = here;
    }
    (0..blobs.len()).filter(|id| parent[*id] == *id).map(|id| blobs[id]).collect()
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

/// Joins small parts to the larger blob that they nearly touch: a wheel, a roof, a shoe.
fn join_parts(blobs: &mut Vec<Blob>) {
    blobs.retain(|blob| blob.area >= 5);
    blobs.sort_by_key(|blob| std::cmp::Reverse(blob.area));
    blobs.truncate(MAX_BLOBS);
    let mut index = 0;
    while index < blobs.len() {
        let mut other = index + 1;
        let mut joined = false;
        while other < blobs.len() {
            if belongs(&blobs[index], &blobs[other]) {
                let part = blobs.remove(other);
                blobs[index].join(&part);
                joined = true;
            } else {
                other += 1;
            }
        }
        // A grown blob may now reach a part that it did not reach before.
        if !joined {
            index += 1;
        }
    }
}

fn belongs(large: &Blob, small: &Blob) -> bool {
    let size = large.width().min(large.height());
    let reach = (2 + size / 12).min(MAX_JOIN_REACH);
    let gap_across = small.left.max(large.left).saturating_sub(small.right.min(large.right));
    let gap_down = small.top.max(large.top).saturating_sub(small.bottom.min(large.bottom));
    let is_part = small.area * 4 < large.area;
    let mut both = *large;
    both.join(small);
    // A part completes a box; what would stretch it far is somebody else.
    let stretched = both.width() * both.height() * 10 > large.width() * large.height() * 14;
    is_part && gap_across <= reach && gap_down <= reach && !stretched
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
        let (cells, width, height) = plane(&["#.#..#", "#.#...", "###..."]);
        let mut found = components(&cells, width, height);
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
    fn a_small_part_joins_and_an_equal_neighbour_does_not() {
        let large = Blob { left: 0, top: 0, right: 40, bottom: 20, area: 700 };
        let wheel = Blob { left: 5, top: 22, right: 12, bottom: 27, area: 30 };
        let car = Blob { left: 42, top: 0, right: 80, bottom: 20, area: 650 };
        let mut blobs = vec![large, wheel, car];
        join_parts(&mut blobs);
        assert_eq!(blobs.len(), 2);
        assert_eq!(blobs[0].bottom, 27);
    }
}
