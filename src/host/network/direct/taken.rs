//! How many connections other shims have to this one, in all and of each node, so that no node takes all places. Runs
//! in the shim daemon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::lock;
use cwasi_direct::tls::Proven;

/// Most connections of one daemon; further ones are refused, and their calls go over Redis.
const ALL_MAX: usize = 4096;
/// Most of them of one node, which may have many shims.
const NODE_MAX: usize = ALL_MAX / 2;

/// Connections by what their nodes have proved; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken(Arc<Mutex<HashMap<Proven, usize>>>);

/// One connection's place; free when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Taken,
    proven: Proven,
}

impl Taken {
    /// A place for one more connection.
    ///
    /// # Errors
    /// Why there is none, for the other side.
    pub(super) fn take(&self, proven: &Proven) -> Result<Place, String> {
        let mut taken = lock(&self.0);
        if taken.values().sum::<usize>() >= ALL_MAX {
            return Err(format!("{ALL_MAX} connections are open"));
        }
        let count = taken.entry(proven.clone()).or_default();
        if *count >= NODE_MAX {
            return Err(format!("{NODE_MAX} connections of this node are open"));
        }
        *count += 1;
        Ok(Place { of: self.clone(), proven: proven.clone() })
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.of.0);
        if let Some(count) = taken.get_mut(&self.proven) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.proven);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_half_of_the_places_at_most() {
        let taken = Taken::default();
        let [one, two, three] = [1, 2, 3].map(|number| Proven::Key(vec![number]));
        let take = |proven: &Proven| taken.take(proven);
        let mut places: Vec<_> = (0..NODE_MAX).map(|_| take(&one).unwrap()).collect();
        assert_eq!(take(&one).unwrap_err(), "2048 connections of this node are open");
        places.extend((0..NODE_MAX).map(|_| take(&two).unwrap()));
        assert_eq!(take(&three).unwrap_err(), "4096 connections are open");
        places.pop();
        let last = take(&three).unwrap();
        drop((places, last));
        assert!(taken.is_empty());
    }
}
