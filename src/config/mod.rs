//! Everything that a user can configure, parsed once: annotations of a container ([`annotations`]) and the
//! node's own settings ([`node`]). Nothing else reads annotations, options, files or variables.

pub mod annotations;
mod embed;
pub mod node;
mod values;

pub use annotations::{AnnotationError, FunctionSpec};
pub use node::{NodeConfig, NodeConfigError};
pub use values::name as function_name;
