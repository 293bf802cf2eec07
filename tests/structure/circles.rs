//! Circles of a graph.

use std::collections::{BTreeMap, BTreeSet};

/// For each node, the nodes that it uses.
pub type Graph<N> = BTreeMap<N, BTreeSet<N>>;

/// The largest sets of nodes that all reach each other.
pub fn circles<N: Ord>(graph: &Graph<N>) -> BTreeSet<BTreeSet<&N>> {
    let reached: BTreeMap<_, _> = graph.keys().map(|node| (node, reached(graph, node))).collect();
    let circle = |(node, others): (&&_, &BTreeSet<_>)| -> BTreeSet<_> {
        let back = |other: &&_| reached.get(*other).is_some_and(|it| it.contains(*node));
        others.iter().copied().filter(|other| back(other)).collect()
    };
    reached.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
}

fn reached<'a, N: Ord>(graph: &'a Graph<N>, start: &'a N) -> BTreeSet<&'a N> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
    while let Some(node) = next.pop() {
        next.extend(graph.get(node).into_iter().flatten().filter(|used| seen.insert(*used)));
    }
    seen
}
