//! Layers on several GPUs, from the command line, on two stand-ins.

use std::process::Command;

use super::{Driver, driver, octavo, run};

/// Returns the hash of the tokens that the built-in model generates.
fn hash(command: &mut Command, options: &[&str]) -> String {
    let arguments = [
        "bench",
        "-p",
        "0",
        "-n",
        "24",
        "-r",
        "1",
        "--no-limits",
        "-o",
        "json",
    ];
    let text = run(command.args(arguments).args(options)).text("bench");
    let hash = text.split("\"token_hash\": \"").nth(1);
    let hash = hash.and_then(|rest| rest.split('"').next());
    hash.unwrap_or_else(|| panic!("no hash: {text}")).to_owned()
}

fn two(driver: &Driver) -> Command {
    octavo(driver, "devices=2 execute=late")
}

#[test]
fn layers_on_two_gpus_choose_the_tokens_of_one() {
    let Some(driver) = driver() else { return };
    let one = hash(&mut two(&driver), &["--device", "cuda"]);
    for options in [
        &["--split-mode", "layer"][..],
        &["-sm", "layer", "-ts", "3,1"],
        &["-sm", "layer", "-ts", "1,9", "--no-cuda-graph"],
    ] {
        let options = [&["--device", "cuda"], options].concat();
        assert_eq!(hash(&mut two(&driver), &options), one, "{options:?}");
    }
}

#[test]
fn what_runs_where_is_said() {
    let Some(driver) = driver() else { return };
    let mut command = two(&driver);
    command.args(["run", "-p", "1+1=", "-n", "2", "--device", "cuda", "-v"]);
    let text = run(command.args(["-sm", "layer", "-ts", "1,1"])).text("run");
    let says = ["layers 0 to 2 take ", "the last layer and the output take "];
    assert!(says.iter().all(|line| text.contains(line)), "{text}");
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let Some(driver) = driver() else { return };
    for (options, says) in [
        (
            "-sm layer -ts 1,1,1",
            "expected proportions for up to 2 GPUs, one above 0, got 1,1,1",
        ),
        ("-sm layer -ts 0,0", "got 0,0"),
        ("-sm layer -ts 1,-1", "got 1,-1"),
        (
            "-sm layer -ngl 2",
            "expected the whole model there, got layers on the CPU",
        ),
        (
            "-sm none -ts 1,1",
            "--tensor-split has no effect: expected --split-mode layer",
        ),
        ("-sm row", "[possible values: none, layer]"),
        ("-ts 1,1", "--split-mode"),
        ("-sm layer --gpu 1", "--gpu"),
    ] {
        let mut command = two(&driver);
        command.args(["run", "-p", "1+1=", "-n", "1", "--device", "cuda"]);
        let ended = run(command.args(options.split(' ')));
        assert!(
            !ended.ok && ended.text.contains(says),
            "{options}: {}",
            ended.text
        );
    }
}
