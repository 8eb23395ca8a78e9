//! Open settings, and the sources that fill them.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::sample::{SamplerDefaults, Stage};
use octavo_fixtures::tiny::File;

#[test]
fn known_samplers_are_picked_out_of_names_and_letters() {
    let some = vec![Stage::TopK, Stage::MinP, Stage::Temperature];
    for text in [
        "top_k;min_p;temperature",
        "top-k, min-p,temp",
        "kmt",
        "ikmt",
    ] {
        assert_eq!(Stage::known_in(text), (some.clone(), vec![]), "{text}");
    }
    let names = [
        "top_k",
        "infill",
        "nonsense",
        "top_k",
        "min_p",
        "",
        "temperature",
    ];
    assert_eq!(Stage::known_of(names), (some, vec!["nonsense"]));
    assert_eq!(Stage::known_in(""), (vec![], vec![]));
    assert_eq!(Stage::known_in("kq"), (vec![], vec!["kq"]));
    assert_eq!(
        Stage::known_in("temperature"),
        (vec![Stage::Temperature], vec![])
    );
}

#[test]
fn a_file_recommends_what_its_keys_say_and_nonsense_is_passed_over() {
    let mut file = File::running("qwen3");
    file.set("general.sampling.temp", 0.6f32);
    file.set("general.sampling.top_k", 20i32);
    file.set("general.sampling.top_p", f32::NAN);
    file.set("general.sampling.min_p", "a lot");
    file.set("general.sampling.penalty_repeat", -1.0f32);
    file.set("general.sampling.penalty_last_n", -1i32);
    file.set("general.sampling.sequence", "top_k;nonsense;temp");
    file.set("general.sampling.mirostat", 2i32);
    file.set("general.sampling.xtc_probability", 3.0f32);
    let gguf = Gguf::from_bytes(file.bytes(), "a test", &OpenOptions::default()).expect("sound");
    let (defaults, warnings) = SamplerDefaults::from_gguf(&gguf);
    let expected = SamplerDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        penalty_window: Some(usize::MAX),
        mirostat: Some(2),
        order: Some(vec![Stage::TopK, Stage::Temperature]),
        ..SamplerDefaults::default()
    };
    assert_eq!(defaults, expected);
    assert_eq!(warnings.len(), 5, "{warnings:#?}");
    for key in [
        "top_p",
        "min_p",
        "penalty_repeat",
        "sequence",
        "xtc_probability",
    ] {
        let key = format!("general.sampling.{key}:");
        assert!(warnings.iter().any(|line| line.contains(&key)), "{key}");
    }
    // explicit settings come first, then the file, then the defaults
    let explicit = SamplerDefaults {
        top_k: Some(3),
        ..SamplerDefaults::default()
    };
    let config = explicit
        .or(&defaults)
        .or(&SamplerDefaults::llama_server())
        .config(|| 11);
    let all = (
        config.temperature,
        config.top_k,
        config.top_p,
        config.min_p,
        config.seed,
    );
    assert_eq!(all, (0.6, 3, 0.95, 0.05, 11));
}
