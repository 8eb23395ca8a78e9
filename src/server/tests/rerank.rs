//! Reranking as llama-server, Jina and text-embeddings inference do it.

use octavo_engine::ModelSource;
use octavo_fixtures::shared;
use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, small};

/// Difference from llama-server's scores: its GELU is rounded, and prompts are here.
const BOUND: f64 = 5e-3;

fn server(name: &str) -> Option<Server> {
    let path = shared("feat/embed/models")?.join(format!("{name}-F32.gguf"));
    let source = ModelSource::Path(path);
    Some(Server::of(&source, small(), Options::default()))
}

/// Returns whether two answers are the same but for the model's name, rounding, and the order of
/// equal scores.
fn agree(ours: &Value, theirs: &Value) -> bool {
    let list = |answer: &Value| answer.as_array().or(answer["results"].as_array()).cloned();
    let (Some(ours_list), Some(theirs_list)) = (list(ours), list(theirs)) else {
        return false;
    };
    let score = |one: &Value| one["relevance_score"].as_f64().or(one["score"].as_f64());
    let same = |(a, b): (&Value, &Value)| match (score(a), score(b)) {
        (Some(x), Some(y)) => (x - y).abs() <= BOUND,
        _ => false,
    };
    let of = |list: &[Value], name: &str| {
        let mut all: Vec<String> = list.iter().map(|one| one[name].to_string()).collect();
        all.sort();
        all
    };
    ours_list.len() == theirs_list.len()
        && ours_list.iter().zip(&theirs_list).all(same)
        && of(&ours_list, "index") == of(&theirs_list, "index")
        && of(&ours_list, "text") == of(&theirs_list, "text")
        && ours["usage"] == theirs["usage"]
        && ours["object"] == theirs["object"]
}

#[test]
fn answers_are_those_of_llama_server() {
    let Some(goldens) = shared("feat/embed/goldens") else {
        return;
    };
    let mut n = 0;
    for name in ["bge-reranker", "qwen3-reranker"] {
        let Some(server) = server(name) else {
            return;
        };
        let text = std::fs::read_to_string(goldens.join(format!("{name}-F32/rerank.json")));
        let golden: Value = serde_json::from_str(&text.expect("a golden")).expect("JSON");
        for exchange in golden["exchanges"].as_array().expect("exchanges") {
            let path = exchange["request"]["path"].as_str().expect("a path");
            let mut body = exchange["request"]["body"].clone();
            // here a name that is not served is an error
            if let Some(object) = body.as_object_mut() {
                object.remove("model");
            }
            // llama-server fails on -1, and its batch is shorter than its context
            let status = exchange["status"].as_u64().expect("a status");
            if status >= 500 || !path.contains("rerank") {
                continue;
            }
            let answer = server.post(path, &body);
            assert_eq!(u64::from(answer.status), status, "{body}: {}", answer.text);
            let theirs = &exchange["response"];
            match status {
                200 => assert!(agree(&answer.json(), theirs), "{body}: {}", answer.text),
                _ => assert_eq!(
                    answer.json()["error"]["type"],
                    theirs["error"]["type"],
                    "{body}"
                ),
            }
            n += 1;
        }
    }
    assert!(n >= 20, "{n} exchanges");
}

#[test]
fn documents_are_objects_too_and_are_returned_if_asked_for() {
    let Some(server) = server("bge-reranker") else {
        return;
    };
    let documents = json!([{ "text": "a bear" }, "a city", { "text": "a word" }]);
    let body = json!({
        "query": "panda?", "documents": documents, "return_documents": true, "top_n": 2,
    });
    let answer = server.post("/v1/rerank", &body).json();
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 2);
    for one in results {
        let index = one["index"].as_u64().expect("an index") as usize;
        let texts = ["a bear", "a city", "a word"];
        assert_eq!(one["document"]["text"], texts[index]);
    }
    let scores: Vec<f64> = results
        .iter()
        .filter_map(|one| one["relevance_score"].as_f64())
        .collect();
    assert!(scores[0] >= scores[1], "{scores:?}");
    let all = server.post(
        "/rerank",
        &json!({
            "query": "panda?", "documents": documents, "top_n": -1,
        }),
    );
    assert_eq!(all.json()["results"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_model_without_a_classifier_says_so() {
    let server = Server::usual();
    let body = json!({ "query": "a", "documents": ["b"] });
    let answer = server.post("/v1/rerank", &body);
    assert_eq!(answer.status, 501, "{}", answer.text);
    assert_eq!(answer.json()["error"]["type"], "not_supported_error");
    let body = json!({ "input": "a", "pooling": "rank" });
    let answer = server.post("/v1/embeddings", &body);
    assert_eq!(answer.status, 400, "{}", answer.text);
}
