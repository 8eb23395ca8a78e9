//! Answers written under constraints, token by token, in the built-in model's vocabulary.

mod budget;
mod calls;
mod gbnf;
mod goldens;
mod reasoning;
mod schemas;
mod support;
