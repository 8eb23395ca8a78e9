//! Outputs without a row in the table: pipes, standard input, parts of a model, folders.

use super::*;

#[test]
fn quantize_to_a_pipe_whose_reader_goes_away() {
    let desk = Desk::new();
    assert!(
        Plain::new("mkfifo")
            .arg(desk.at("pipe"))
            .status()
            .expect("mkfifo runs")
            .success()
    );
    let pipe = desk.at("pipe");
    let reader = std::thread::spawn(move || {
        let mut some = [0; 9];
        fs::File::open(pipe)
            .and_then(|mut pipe| pipe.read_exact(&mut some))
            .expect("readable");
    });
    let (code, text) = desk.run("quantize @model.gguf @OUT Q8_0 --allow-requantize", "pipe");
    reader.join().expect("read");
    assert!(
        code == Some(1) && text.contains("pipe: cannot write it: whoever read it has gone away"),
        "{text}"
    );
}

#[test]
fn every_part_of_a_split_model_is_an_input() {
    let desk = Desk::new();
    let parts = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
    for part in parts {
        fs::copy(desk.at("model.gguf"), desk.at(part)).expect("copied");
    }
    for part in parts {
        let (code, text) = desk.run(
            "logits @a-00001-of-00002.gguf -p x --force --dump @OUT",
            part,
        );
        assert!(
            code == Some(1) && text.contains("is the input itself"),
            "{text}"
        );
    }
}

#[test]
fn standard_input_is_an_input_and_standard_output_no_output() {
    let desk = Desk::new();
    let program = env!("CARGO_BIN_EXE_octavo");
    let shell = |command: &str| {
        let output = Plain::new("sh")
            .arg("-c")
            .arg(command)
            .current_dir(desk.at(""))
            .env("OCTAVO", program)
            .output();
        let output = output.expect("sh runs");
        (output.status.code(), stderr(&output))
    };
    let before = fs::read(desk.at("text")).expect("there");
    let (code, text) = shell("\"$OCTAVO\" logits -f - --dump text --force < text");
    assert!(
        code == Some(1) && text.contains("text: is the input itself"),
        "{text}"
    );
    assert_eq!(fs::read(desk.at("text")).expect("there"), before);
    let (code, text) =
        shell("\"$OCTAVO\" diff model.gguf --reference golden --html /dev/stdout > printed");
    assert!(
        code == Some(2) && text.contains("/dev/stdout: is where the text goes that is printed"),
        "{text}"
    );
    let (code, text) = shell(
        "\"$OCTAVO\" diff model.gguf --reference golden --html /dev/stdout | grep -q '</html>'",
    );
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn an_awq_folder_is_only_ever_made() {
    let desk = Desk::new();
    let args = "quantize @model.gguf @OUT awq --no-search --group 64";
    let refused = |out: &str| {
        let (code, text) = desk.run(args, out);
        assert!(
            code == Some(1) && text.contains("is there already: expected a new folder"),
            "{out}: {text}"
        );
    };
    symlink("fresh", desk.at("link")).expect("linked");
    desk.good(args, "link");
    assert!(desk.at("fresh/model.safetensors").exists());
    assert!(
        fs::symlink_metadata(desk.at("link"))
            .expect("there")
            .is_symlink()
    );
    assert!(
        Plain::new("mkfifo")
            .arg(desk.at("pipe"))
            .status()
            .expect("mkfifo runs")
            .success()
    );
    fs::write(desk.at("notes"), NOTES).expect("written");
    for out in ["fresh", "link", "notes", "pipe", "model.gguf"] {
        refused(out);
    }
    assert_eq!(fs::read(desk.at("notes")).expect("there"), NOTES);
    assert_eq!(desk.temporary_files(), [""; 0]);
}
