//! `octavo quant-report` from outside.

use super::{bad, folder, octavo, stderr, stdout};

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
    // q, k, v, output, gate, up, down, and the embedding, which is the output too
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
