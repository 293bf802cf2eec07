//! Everything that a user can configure, parsed once: annotations of a container ([`annotations`]) and the
//! node's own settings ([`node`], [`compile`]). Nothing else reads annotations, options, files or variables.

pub mod annotations;
pub mod compile;
mod embed;
pub mod node;
mod values;

pub use annotations::{AnnotationError, FunctionSpec};
pub use compile::{CompileConfig, CompilerLimits};
pub use node::{NodeConfig, NodeConfigError};
pub use values::name as function_name;
