//! The kernels from outside. All tests are one program: nothing here changes what another test of
//! the process could see.

mod common;

mod absorbed;
mod attention;
mod cuda_shim;
mod elementwise;
mod experts;
mod given;
mod hadamard;
mod layer;
mod matmul;
mod recurrence;
mod standin;
mod team_model;
mod unreliable;
