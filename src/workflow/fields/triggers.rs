//! Fields of `triggers`.

use super::Field;
use super::FieldType::{Object, Text};
use super::Target::Inside;

/// Fields of a trigger.
pub const TRIGGER: &[Field] = &[Field::new(
    "redis",
    Object(REDIS_TRIGGER),
    Inside,
    "a `stream` or a `channel` of the node's Redis; its name begins with `NAMESPACE:`, or the node allows it",
)
.required()];

/// Fields of a trigger in Redis: one of them.
pub const REDIS_TRIGGER: &[Field] = &[
    Field::new("stream", Text, Inside, "name of a stream: runs for each entry, at least once"),
    Field::new(
        "channel",
        Text,
        Inside,
        "name of a channel: runs for each message while an instance runs",
    ),
];
