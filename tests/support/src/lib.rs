//! CWASI's test bed, shared by the end-to-end tests and the demo.
//!
//! - [`image`] writes OCI image archives: a root file system with modules in it, or a module as the layer.
//! - [`guard`] runs one private containerd and takes everything down when its starter is gone;
//!   [`containerd`] starts such a guard and talks to it, [`containerd_config`] is its configuration, [`ready`] its
//!   files; [`node_dir`] is the folder of a node's configuration and state.
//! - [`redis`] runs one private Redis or Valkey, `redis_image` is an image of one; [`nodes`] are two containerds in
//!   networks of their own ([`link`]) with a Redis between them. [`registry`] runs one private registry of images.
//! - [`netns`] is a network of a test's own, [`name_server`] a name server in it; [`http_server`] is a server that
//!   misbehaves on demand, and [`authority`] certifies it.
//! - [`own_process`] runs a test that counts what its process has.
//! - [`page`] finds the code blocks of the documentation; [`languages`] builds the functions that it shows.
//! - [`numbered`] are calls whose ends and executions are compared; [`span_line`] is a recorded span;
//!   [`slow_module`] takes a compiler long.
//! - [`scene`] is one test's containerd namespace with its leak check ([`leaks`]); [`run`] is `ctr run`;
//!   [`kills`] interrupts starts; [`edges`] are the calls that shims have counted, [`events`] what containerd publishes.
//!
//! Runs in test processes and in the `cwasi-testbed` program; never part of the product.

pub mod authority;
pub mod containerd;
pub mod containerd_config;
pub mod edges;
pub mod engines;
pub mod events;
pub mod guard;
pub mod http_server;
pub mod image;
pub mod image_index;
pub mod kills;
pub mod languages;
pub mod leaks;
pub mod link;
pub mod name_server;
pub mod netns;
pub mod node_dir;
pub mod nodes;
pub mod numbered;
pub mod own_process;
pub mod page;
pub mod paths;
pub mod port;
pub mod processes;
pub mod ready;
pub mod redis;
mod redis_image;
pub mod registry;
pub mod run;
pub mod scene;
pub mod slow_module;
pub mod span_line;
