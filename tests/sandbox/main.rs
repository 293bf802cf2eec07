//! The sandbox binary against the real kernel and the real libcontainer, without containerd: these tests
//! take the shim's place. They need root.

mod bed;
mod native;
