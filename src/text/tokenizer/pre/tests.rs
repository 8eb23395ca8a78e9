use super::*;

fn words(name: &str, text: &str) -> Vec<String> {
    let splitter = Splitter::new(family(name).expect("a known family"));
    let cps: Vec<u32> = text.chars().map(u32::from).collect();
    let mut from = 0;
    let word = |to: usize| {
        let word = cps[from..to]
            .iter()
            .filter_map(|cp| char::from_u32(*cp))
            .collect();
        from = to;
        word
    };
    splitter.split(&cps).into_iter().map(word).collect()
}

#[test]
fn every_family_compiles_and_splits_without_loss() {
    let text = "Hello's  wörld 12345\r\n\n  \u{3000}你好ーか ' ll'LL\t\u{85}x e\u{301}tude \
                ½²٣ 🙂🏽!? <sentinel:7>IMGIMGABZ 1,234 ";
    assert_eq!(names().count(), 91);
    for name in names() {
        let words = words(name, text);
        assert_eq!(words.concat(), text, "{name}");
        assert!(words.iter().all(|word| !word.is_empty()), "{name}");
    }
    assert!(family("no-such-family").is_none());
}

#[test]
fn gpt2_words() {
    assert_eq!(
        words("gpt-2", "I'll be  back\n\n at 12am."),
        [
            "I", "'ll", " be", " ", " back", "\n\n", " at", " 12", "am", "."
        ]
    );
    assert_eq!(words("gpt-2", "a   "), ["a", "   "]);
    assert_eq!(words("gpt-2", "\tx"), ["\t", "x"]);
}

#[test]
fn llama3_words() {
    assert_eq!(
        words("llama-bpe", "We'LL pay 12345$\n\nnow  \n x"),
        [
            "We", "'LL", " pay", " ", "123", "45", "$\n\n", "now", "  \n", " x"
        ]
    );
    assert_eq!(words("qwen2", "x12"), ["x", "1", "2"]);
}

#[test]
fn marks_belong_to_letters_only_where_the_family_says_so() {
    assert_eq!(words("qwen2", "e\u{301}a"), ["e", "\u{301}a"]);
    assert_eq!(words("qwen35", "e\u{301}a"), ["e\u{301}a"]);
}

#[test]
fn digits_grouped_from_the_right() {
    assert_eq!(
        words("superbpe", "1234567 12 123"),
        ["1", "234", "567", " ", "12", " ", "123"]
    );
    assert_eq!(words("tiny_aya", "1234567"), ["1", "234", "567"]);
    assert_eq!(words("afmoe", "ab1234 x"), ["ab", "1", "234", " x"]);
}

#[test]
fn white_space_in_powers_of_two() {
    let lengths = |text: &str| {
        words("jais-2", text)
            .iter()
            .map(String::len)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lengths(&" ".repeat(1023)),
        [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]
    );
    assert_eq!(lengths(&format!("{}x", " ".repeat(6))), [4, 1, 2]);
}

#[test]
fn chinese_is_cut_out_where_the_family_says_so() {
    assert_eq!(
        words("kimi-k2", "abc你好def's 1234"),
        ["abc", "你好", "def's", " ", "123", "4"]
    );
    assert_eq!(words("deepseek-v3", "abc你好def"), ["abc", "你好", "def"]);
}

#[test]
fn an_ideographic_space_is_white_space_everywhere() {
    // As a character of its own it would be in the range of the last-but-one pattern, together with
    // the full stop.
    assert_eq!(
        words("deepseek-llm", "a\u{3000}。"),
        ["a", "\u{3000}", "。"]
    );
}

/// Letters by their classes, as in o200k's patterns in tokenizer.json.
#[test]
fn families_are_recognised_as_hugging_face_writes_them() {
    let (upper, lower) = (
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    );
    let word = r"[^\r\n\p{L}\p{N}]?";
    let pattern = |ending: &str, numbers: &str| {
        let words = format!("{word}{upper}*{lower}+{ending}|{word}{upper}+{lower}*{ending}");
        let others = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        format!("{words}|{numbers}|{others}")
    };
    let o200k = [pattern(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")];
    assert_eq!(recognise(&o200k, false, &["gpt-4o"]), Some("gpt-4o"));
    assert_eq!(
        recognise(&[pattern("", r"\p{N}")], true, &[]),
        Some("tekken")
    );
    assert_eq!(recognise(&o200k, true, &["gpt-4o"]), None);
}
