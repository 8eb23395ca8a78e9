//! Every crate can be published, in order, and what is published is the whole program.

use std::process::Command;

use octavo_fixtures::workspace_root;

use super::transcript::Transcript;

pub(super) fn prove(transcript: &mut Transcript) -> Result<(), String> {
    let mut command: Command = crate::cargo();
    // each is built from its package, with the packages before it
    command.args(["publish", "--workspace", "--dry-run", "--locked"]);
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    transcript
        .succeed(command.current_dir(workspace_root()))
        .map(drop)
}
