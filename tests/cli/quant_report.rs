//! Tests of `octavo quant-report` as a program.

use super::{bad, folder, good, json, octavo, stderr, stdout};

#[test]
fn coarser_types_cost_more_and_the_ranking_is_complete() {
    let dir = folder();
    let model = octavo_fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let f16 = dir.path().join("f16.gguf");
    let path = |p: &std::path::Path| p.to_str().expect("UTF-8").to_owned();
    let (model, f16, page) = (
        path(&model),
        path(&f16),
        path(&dir.path().join("page.html")),
    );
    let made = octavo(&["quantize", &model, &f16, "F16", "--allow-requantize"])
        .output()
        .expect("it runs");
    assert!(made.status.success(), "{}", stderr(&made));
    let text = path(&octavo_fixtures::committed_goldens().join("formats/text.txt"));
    let args = [
        "quant-report",
        &f16,
        "-f",
        &text,
        "-c",
        "16",
        "--types",
        "Q8_0,Q4_0,Q2_K",
        "--sensitivity",
        "Q2_K",
    ];
    let more = ["--by-role", "--json", "--html", &page];
    let out = octavo(&[&args[..], &more].concat())
        .output()
        .expect("it runs");
    assert!(out.status.success(), "{}", stderr(&out));
    let json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    let kl = |i: usize| json["types"][i]["mean_kl"][0].as_f64().expect("a number");
    assert!(kl(0) < kl(1) && kl(1) < kl(2), "{json}");
    let bits = |i: usize| {
        json["types"][i]["bits_per_weight"]
            .as_f64()
            .expect("a number")
    };
    assert!(bits(0) > bits(1) && bits(1) > bits(2), "{json}");
    let ranked = json["sensitivity"].as_array().expect("a list");
    let roles: Vec<&str> = ranked
        .iter()
        .map(|r| r["role"].as_str().expect("a name"))
        .collect();
    // q, k, v, output, gate, up, down, and the embedding, which is also the output
    assert_eq!(roles.len(), 8, "{roles:?}");
    assert!(
        ranked
            .windows(2)
            .all(|w| w[0]["mean_kl"].as_f64() >= w[1]["mean_kl"].as_f64()),
        "{json}"
    );
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.contains("<svg") && html.contains("class=heat") && !html.contains("<script"));
    assert!(bad(&["quant-report", &f16, "-f", &text, "--types", "Q9"], 2).contains("Q9"));
    assert!(bad(&["quant-report", "/nonexistent", "-f", &text], 1).contains("/nonexistent"));
}

/// Experts are ranked like other matrices, with their own importance; routers are never quantized.
#[test]
fn experts_are_ranked_and_routers_are_not() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (model, imatrix) = (path("mixture.gguf"), path("imatrix.gguf"));
    std::fs::write(&model, octavo_fixtures::tiny::File::mixture().bytes()).expect("written");
    let text = octavo_fixtures::committed_goldens().join("formats/text.txt");
    let text = text.to_str().expect("UTF-8");
    good(&["imatrix", &model, "-f", text, "-c", "16", "-o", &imatrix]);
    let args = [
        "quant-report",
        &model,
        "-f",
        text,
        "-c",
        "16",
        "--types",
        "Q8_0",
    ];
    let more = ["--allow-requantize", "--imatrix", &imatrix];
    let ranking = ["--sensitivity", "Q4_0", "--by-role", "--json"];
    let json = json(&[&args[..], &more, &ranking].concat());
    let ranked = json["sensitivity"].as_array().expect("a list");
    let mut roles: Vec<&str> = ranked
        .iter()
        .filter_map(|r| r["role"].as_str())
        .filter(|role| role.starts_with("ffn"))
        .collect();
    roles.sort_unstable();
    assert_eq!(roles, ["ffn_down_exps", "ffn_gate_exps", "ffn_up_exps"]);
    let of_experts = |r: &&serde_json::Value| r["role"] == "ffn_up_exps";
    let up = ranked.iter().find(of_experts).expect("ranked");
    // both layers, four experts each
    assert_eq!(up["weights"], 2 * 4 * 64 * 96);
    assert!(up["mean_kl"].as_f64().is_some_and(|kl| kl > 0.0), "{up}");
    let awq = path("awq");
    let line = bad(&["quantize", &model, &awq, "awq", "-f", text], 1);
    assert!(
        line.contains("expert_count: expected no experts, got 4"),
        "{line}"
    );
}

/// The mixes as large as stock ones lose less, on another text than the one they are chosen on.
#[test]
fn the_front_is_below_the_stock_types() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (f16, page) = (path("f16.gguf"), path("page.html"));
    let root = octavo_fixtures::workspace_root();
    let model = root.join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let model = model.to_str().expect("UTF-8");
    good(&["quantize", model, &f16, "F16", "--allow-requantize"]);
    let (text, other) = (root.join("docs/serving.md"), root.join("LICENSE-APACHE"));
    let text = text.to_str().expect("UTF-8");
    let front = ["--front", other.to_str().expect("UTF-8")];
    let types = ["--types", "Q3_K_M,Q2_K", "-c", "128", "--chunks", "8"];
    let args = [&["quant-report", &f16, "-f", text][..], &types].concat();
    let json = json(&[&args[..], &front, &["--json", "--html", &page]].concat());
    for i in 0..2 {
        let of = |list: &str, name: &str| match &json[list][i][name] {
            serde_json::Value::Array(pair) => pair[0].as_f64(),
            one => one.as_f64(),
        };
        let both = |name| [of("types", name), of("mixes", name)].map(|n| n.expect("a number"));
        let ([stock, mix], [stock_kl, mix_kl]) = (both("bytes"), both("mean_kl"));
        assert!(mix <= stock && mix > 0.95 * stock, "{json}");
        assert!(mix_kl < 0.75 * stock_kl, "{json}");
    }
    assert_eq!(json["mixes"][1]["name"], "mix \u{2264} Q2_K");
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.contains("best mixes of their sizes"));
    let shard = ["--shard", "1/2", "--out", &path("1.shard")];
    assert!(bad(&[&args[..], &front, &shard].concat(), 2).contains("--front"));
}

/// Models that are scored beside the original have the figures of models that are scored one after
/// the other, against its predictions in a file.
#[test]
fn figures_do_not_depend_on_how_models_are_scored() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (f16, q2) = (path("f16.gguf"), path("q2.gguf"));
    let root = octavo_fixtures::workspace_root();
    let model = root.join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let model = model.to_str().expect("UTF-8");
    good(&["quantize", model, &f16, "F16", "--allow-requantize"]);
    good(&["quantize", model, &q2, "Q2_K", "--allow-requantize"]);
    let text = octavo_fixtures::committed_goldens().join("formats/text.txt");
    let text = text.to_str().expect("UTF-8");
    let report = |more: &[&str]| {
        let args = [
            "quant-report",
            &f16,
            "-f",
            text,
            "-c",
            "16",
            "--also",
            &q2,
            "--json",
        ];
        let out = octavo(&[&args[..], more].concat())
            .output()
            .expect("it runs");
        assert!(out.status.success(), "{}", stderr(&out));
        let mut json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
        for model in json["types"].as_array_mut().expect("a list") {
            for speed in ["prompt_rate", "generation_rate"] {
                assert!(model[speed].take().as_f64().is_some_and(|rate| rate > 0.0));
            }
        }
        let ppl = json["base"]["ppl"].take();
        (stderr(&out), ppl, json["types"].take())
    };
    let (said, ppl, beside) = report(&["--types", "Q8_0"]);
    assert!(
        said.contains("scoring the model itself and 2 beside"),
        "{said}"
    );
    let ranking = ["--types", "Q8_0", "--sensitivity", "Q2_K", "--by-role"];
    let (said, ppl_again, in_turn) = report(&ranking);
    assert!(
        said.contains("scoring Q8_0") && !said.contains("beside"),
        "{said}"
    );
    assert_eq!((&ppl, &beside), (&ppl_again, &in_turn));
    // two files take more room than the predictions for two short chunks
    let (said, ..) = report(&["--types", "Q8_0,Q4_0", "--chunks", "2"]);
    assert!(
        said.contains("scoring Q4_0") && !said.contains("beside"),
        "{said}"
    );
}
