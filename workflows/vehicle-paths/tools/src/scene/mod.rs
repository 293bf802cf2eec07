//! A synthetic T-junction: traffic that obeys lanes, leaders and turns, pedestrians on the
//! pavements, cameras with a known homography, and the pictures they would take.
//!
//! The scene is meant to be hard in the ways a street is: cast shadows as dark as a grey car,
//! grey cars on grey road, sensor noise, drifting light, vehicles hiding each other. Everything
//! follows from the seed. World units are metres; x east, y north, z up; the ground is z = 0.

pub mod camera;
pub mod draw;
pub mod film;
pub mod ground;
pub mod random;
pub mod raster;
pub mod traffic;
pub mod truth;
