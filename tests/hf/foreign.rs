//! Folders as other programs write them.

use super::hostile::Folder;
use serde_json::{Value, json};

/// Settings of AutoAWQ before transformers had names for them, and JSON as Python writes it.
#[test]
fn what_other_programs_write_is_read() {
    let folder = Folder::new();
    let is_read = |change: &dyn Fn(&mut Value)| {
        folder
            .with("config.json", change)
            .map(drop)
            .unwrap_or_else(|e| panic!("{e}"));
    };
    is_read(&|c| {
        c["quantization_config"]
            .as_object_mut()
            .expect("an object")
            .remove("version");
    });
    is_read(&|c| c["quantization_config"]["version"] = json!("GEMM"));
    let own = json!({ "zero_point": true, "q_group_size": 128, "w_bit": 4 });
    is_read(&|c| c["quantization_config"] = own.clone());
    // in a file beside config.json
    let beside = folder.path.join("quant_config.json");
    std::fs::write(&beside, own.to_string()).expect("written");
    let without = |c: &mut Value| {
        c.as_object_mut()
            .expect("an object")
            .remove("quantization_config");
    };
    is_read(&without);
    let wrong = json!({ "zero_point": true, "q_group_size": 128, "w_bit": 8 });
    std::fs::write(&beside, wrong.to_string()).expect("written");
    let error = folder
        .with("config.json", without)
        .map(drop)
        .expect_err("8 bits");
    assert!(
        error.contains("quant_config.json: w_bit: expected 4, got 8"),
        "{error}"
    );
    std::fs::remove_file(&beside).expect("it is there");
    assert!(
        folder.with("config.json", without).is_err(),
        "nothing says how weights lie"
    );
    // a byte order mark, and numbers that JSON cannot express
    let path = folder.path.join("config.json");
    let text = std::fs::read_to_string(&path).expect("there");
    let text = text.replacen(
        '{',
        "\u{FEFF}{\"limits\": [0.0, Infinity], \"none\": NaN,",
        1,
    );
    std::fs::write(&path, &text).expect("written");
    folder.open().map(drop).unwrap_or_else(|e| panic!("{e}"));
    // a setting that must be a number does not accept such a word
    let mut said: Value =
        serde_json::from_str(&text[3..].replace("Infinity", "1").replace("NaN", "1"))
            .expect("JSON");
    said["rms_norm_eps"] = json!("NaN");
    let words = said.to_string().replace("\"NaN\"", "NaN");
    std::fs::write(&path, words).expect("written");
    let error = folder.open().map(drop).expect_err("no number");
    assert!(
        error.contains("rms_norm_eps: expected a number, got \"NaN\""),
        "{error}"
    );
}
