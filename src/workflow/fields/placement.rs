//! Fields of a placement: where a cluster puts the functions.

use super::Field;
use super::FieldType::{Choice, Map};
use super::Target::Kubernetes;

pub const PLACEMENT: &[Field] = &[
    Field::new(
        "policy",
        Choice(&["auto", "node", "pod", "spread"]),
        Kubernetes("pod affinity, one pod, or topologySpreadConstraints"),
        "`node`: on one node if there is room; `pod`: in one pod; `spread`: over the nodes; `auto`: as `node`, with advice from what calls move; `auto`",
    ),
    Field::new(
        "move",
        Choice(&["true", "false"]),
        Kubernetes("pod affinity between both functions of an edge"),
        "`true`: with policy `auto`, functions follow the advice at their next rollout; `false`",
    ),
    Field::new(
        "edges",
        Map,
        Kubernetes("pod affinity or anti-affinity between both functions"),
        "`node` or `spread` for single edges such as `front->prices`; as the policy says",
    ),
];
