//! Integration tests of the kernels. They form one executable: no test here changes state that
//! another test in the process could see.

mod common;

mod absorbed;
mod attention;
mod cuda_shim;
mod elementwise;
mod embedding_inputs;
mod experts;
mod hadamard;
mod layer;
mod logits;
mod matmul;
mod positions;
mod recurrence;
mod standin;
mod team_model;
mod unreliable;
