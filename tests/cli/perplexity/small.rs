//! Small bases: their size, the figures from them, and the bound on what these can be off.

use std::fs;

use serde_json::Value;

use super::beside::{desk, fails, number, object, works};

#[test]
fn a_small_base_is_a_small_part_and_as_good() {
    let dir = desk();
    let text = "@f16 -f @text -c 64";
    let whole = works(&dir, &format!("{text} --kl-divergence-base @whole"));
    let small = works(
        &dir,
        &format!("{text} --kl-divergence-base @small --base-top 200"),
    );
    assert_eq!(whole, small);
    let sizes =
        ["whole", "small"].map(|name| fs::metadata(dir.path().join(name)).expect("written").len());
    // a fifth of a vocabulary of 1024 tokens: of usual ones, a hundred times less
    assert!(sizes[1] * 2 < sizes[0], "{sizes:?}");
    let exact = object(&dir, "@q2 --against @f16 -f @text -c 64 --json");
    let kld = |object: &Value| number(&object["kld"]["value"]);
    let compare = |base: &str| {
        object(
            &dir,
            &format!("@q2 --kl-divergence-base @{base} --kl-divergence --json"),
        )
    };
    let (of_whole, of_small) = (compare("whole"), compare("small"));
    let errors = [&of_whole, &of_small].map(|object| kld(object) - kld(&exact));
    // what is drawn depends on the last digits of the logits, which CPUs round differently
    assert!(errors.iter().all(|error| error.abs() < 1e-4), "{errors:?}");
    assert_eq!(of_small["ppl"], exact["ppl"]);
    assert_eq!(of_small["same_top"], exact["same_top"]);
    assert!(
        (number(&of_small["ppl_base"]["value"]) / number(&exact["ppl_base"]["value"]) - 1.0).abs()
            < 1e-5
    );
    // fewer tokens and bits: more off, within the bound
    for (top, bits) in [(5, 8), (20, 12), (100, 8)] {
        let options = format!("--base-top {top} --base-bits {bits} --kl-divergence-base @few");
        works(&dir, &format!("{text} {options}"));
        let few = compare("few");
        let bound = few["kld"]["off_by_at_most"]
            .as_array()
            .expect("two numbers");
        let error = kld(&exact) - kld(&few);
        let (below, above) = (number(&bound[0]), number(&bound[1]));
        assert!(
            below <= error && error <= above,
            "{below} to {above}: {error}"
        );
        assert!(below < 0.0 && above > 0.0);
        let drawn = number(&few["kld"]["drawn_within_95"]);
        // three standard deviations, and what 8 bits round
        assert!(error.abs() < 1.5 * drawn + 1e-3, "{error}, {drawn}");
    }
    let said = works(&dir, "@q2 --kl-divergence-base @few --kl-divergence");
    assert!(said.contains("\nSmall base: Mean KLD is within 0.0"));
}

#[test]
fn small_bases_that_do_not_fit_are_refused() {
    let dir = desk();
    let base = "@f16 -f @text -c 64 --kl-divergence-base @small --base-top 9";
    works(&dir, base);
    // an older base of either form may be replaced
    works(&dir, base);
    let path = dir.path().join("small");
    let bytes = fs::read(&path).expect("read");
    let compare = "@q2 --kl-divergence-base @small --kl-divergence --json -q";
    for (line, code, says) in [
        (
            format!("{compare} -c 32"),
            1,
            "chunks of 64 tokens: expected at most -c, 32",
        ),
        (
            format!("{compare} -f @other"),
            1,
            "made from another text: token 0",
        ),
        (format!("{compare} --base-top 9"), 2, "--base-top"),
        (
            "@q2 -f @text --kl-divergence-base @b --base-top 9 --shard 1/2 --out @out".to_owned(),
            2,
            "octavo merge -o writes small bases",
        ),
        (
            "@q2 -f @text --base-top 9".to_owned(),
            2,
            "--kl-divergence-base",
        ),
        ("@q2 -f @text --base-bits 9".to_owned(), 2, "--base-top"),
    ] {
        fs::write(dir.path().join("other"), "Others ".repeat(200)).expect("written");
        fails(&dir, &line, code, says);
    }
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        fs::write(&path, bytes).expect("written");
    };
    damaged(&|bytes| bytes.truncate(bytes.len() - 1));
    fails(&dir, compare, 1, "small: cut off: expected 9 chunks, got 8");
    damaged(&|bytes| bytes.truncate(30));
    fails(&dir, compare, 1, "small: cut off: expected 9 chunks, got 0");
    damaged(&|bytes| bytes[8] = 17);
    fails(
        &dir,
        compare,
        1,
        "expected 8 to 16 bits, and sizes of chunks",
    );
    damaged(&|bytes| bytes[24..28].fill(0xff));
    fails(
        &dir,
        compare,
        1,
        "expected tokens of the vocabulary, got 4294967295",
    );
    let rows = 24 + 9 * 64 * 4;
    damaged(&|bytes| bytes[rows..rows + 4].fill(0xff));
    fails(
        &dir,
        compare,
        1,
        "small: chunk 0: expected the number of tokens, got 4294967295",
    );
    damaged(&|bytes| bytes[16] ^= 1);
    fails(&dir, compare, 1, "made with another vocabulary");
}
