//! Options of a bind mount that the builder consumes. The command writes them into a function's specification; other
//! runtimes ignore them.

/// No part of the mount's source may be a symbolic link.
pub const NO_LINKS: &str = "x-cwasi.no-links";
/// The source has to be the file with this device and inode: `x-cwasi.identity=DEVICE:INODE`.
pub const IDENTITY: &str = "x-cwasi.identity=";
