//! Fields of `fanIn`.

use super::Field;
use super::FieldType::{Choice, Duration, Text};
use super::Target::Annotation;

/// Fields of a fan-in.
pub const FAN_IN: &[Field] = &[
    Field::new(
        "parts",
        Text,
        Annotation("cwasi.fan-in"),
        "parts of a group: 2 to 1024, or `caller` when each call says it",
    )
    .required(),
    Field::new(
        "timeout",
        Duration,
        Annotation("cwasi.fan-in.timeout"),
        "longest wait of a group after its first part; 30s",
    ),
    Field::new(
        "partial",
        Choice(&["fail", "deliver"]),
        Annotation("cwasi.fan-in.partial"),
        "what becomes of an incomplete group: `fail` or `deliver`; `fail`",
    ),
];
