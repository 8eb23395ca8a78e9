//! Tasks with a choice of answers: the lines of llama-perplexity, from small files of our own.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::{bad, folder, good, json};

/// Context, four endings, and the index of the right one.
type Story = (&'static str, [&'static str; 4], usize);

const STORIES: [Story; 7] = [
    (
        "Once upon a time there was a fox. The fox",
        [
            "lived under the tree.",
            "said 3+4=9.",
            "tree the under lived.",
            "was a red fox",
        ],
        0,
    ),
    ("Sums: 1+1=2, 2+2=", ["4", "5", "44", "a fox"], 0),
    (
        "The cat sat",
        ["on the mat.", "mat on.", "in the tree and 5+5=", "under 2"],
        0,
    ),
    ("3+4=7. 2+5=", ["8", "7", "6", "9"], 1),
    (
        "There was a bird in the tree. One day",
        [
            "the bird",
            "12+30=42",
            "was was was",
            "a little girl found the bird.",
        ],
        3,
    ),
    ("9-4=5. 8-", ["4=4", "4=5", "3=3", "8=8"], 0),
    (
        "A little boy went to the park. He saw a",
        [
            "big red ball.",
            "ball.",
            "ball. 4",
            "dog and he was happy. The dog",
        ],
        3,
    ),
];

/// The last line is left out, as it does not end with two line feeds.
const GAPS: &str = "\
0,The fox lived near the bird because the _ was kind.,fox,bird,2
1,\"So, the cat saw the dog, and the _ ran away from there.\",cat,dog,1
2,Tom gave Sue a ball and _ said thank you to him.,Tom,Sue,2
3,1+1= _ .,2,3,1
4,Two and two make _,four,five,1
5,The boy liked the girl since _ was nice to all of them.,boy,girl,2
6,Once upon a time a _ lived in a big house with her mom.,little girl,fox,1
7,One day _ went to the park to play with the red ball there.,Lily,Tom,1
8,left out because of how the last line is read _ .,x,y,1
";

/// Question, answers, and the index of the right one.
const CHOICES: [(&str, &[&str], usize); 7] = [
    ("1+1=", &["2", "3", "4"], 0),
    ("What is 2+3?", &["5", "It is 6", "7", "8 is it"], 0),
    (
        "The fox lived under the",
        &["tree.", "moon and the stars"],
        0,
    ),
    ("12+30=", &["42", "41", "43", "44", "45"], 0),
    (
        "Once upon a time there was a",
        &["little girl named Lily.", "12", "of the"],
        0,
    ),
    ("7-2=", &["4", "5"], 1),
    (
        "A cat is a kind of",
        &["tree", "animal", "animals that play"],
        1,
    ),
];

fn binary() -> Vec<u8> {
    let number = |n: usize| (n as u32).to_le_bytes().to_vec();
    let text = |text: &str| [number(text.len()), text.as_bytes().to_vec()].concat();
    let task = |(question, answers, right): &(&str, &[&str], usize)| {
        let mut out = text(question);
        out.extend(number(answers.len()));
        answers.iter().for_each(|answer| out.extend(text(answer)));
        (0..answers.len()).for_each(|i| out.extend(number(usize::from(i == *right))));
        // no second list of answers
        out.extend(number(0));
        out
    };
    let tasks: Vec<Vec<u8>> = CHOICES.iter().map(task).collect();
    let mut file = number(tasks.len());
    let mut at = 4 + 4 * tasks.len();
    for task in &tasks {
        file.extend(number(at));
        at += task.len();
    }
    [file, tasks.concat()].concat()
}

/// Files of the three kinds.
struct Files {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Files {
    fn new() -> Files {
        let dir = folder();
        let model = dir.path().join("f32.gguf");
        let demo = octavo_fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
        let [demo, to] = [&demo, &model].map(|path| path.to_str().expect("UTF-8"));
        // llama.cpp rounds activations where weights are quantized
        good(&["quantize", demo, to, "F32", "--allow-requantize", "-q"]);
        let stories = STORIES
            .map(|(context, ends, right)| format!("{context}\n{right}\n{}\n", ends.join("\n")));
        let files = Files { dir, model };
        fs::write(files.at("stories"), stories.concat()).expect("written");
        fs::write(files.at("gaps"), GAPS).expect("written");
        fs::write(files.at("choices"), binary()).expect("written");
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args<'a>(&'a self, file: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let model = self.model.to_str().expect("UTF-8");
        let file = file.to_str().expect("UTF-8");
        let all = [
            "perplexity",
            model,
            "-f",
            file,
            "-ctk",
            "f32",
            "-ctv",
            "f32",
        ];
        [&all[..], more].concat()
    }
}

/// llama-perplexity's lines for the stories, with `-fa off --no-repack -ctk f32 -ctv f32`.
const STORY_LINES: &str = "
task\tacc_norm\t95% confidence interval
1\t0.00000000%\t[0.0000%, 79.3451%]
2\t50.00000000%\t[9.4531%, 90.5469%]
3\t33.33333333%\t[6.1492%, 79.2340%]
4\t25.00000000%\t[4.5587%, 69.9358%]
5\t40.00000000%\t[11.7621%, 76.9276%]
6\t33.33333333%\t[9.6771%, 70.0007%]
7\t28.57142857%\t[8.2219%, 64.1066%]

";

/// Its lines for the gaps: number, share, both scores, the chosen word and the right one.
const GAP_LINES: [(&str, f64, f64, &str); 8] = [
    ("0.0000", -12.595759, -12.818094, "1  2"),
    ("0.0000", -11.703686, -11.538108, "2  1"),
    ("0.0000", -15.263345, -15.314516, "1  2"),
    ("25.0000", -10.998219, -15.337112, "1  1"),
    ("40.0000", -10.846917, -11.240577, "1  1"),
    ("33.3333", -13.347513, -13.584670, "1  2"),
    ("28.5714", -13.435170, -12.329095, "2  1"),
    ("25.0000", -14.483788, -14.261203, "2  1"),
];

/// The numbers of the four that it draws.
const DRAWN: [usize; 4] = [3, 6, 4, 5];

/// Its lines for the choices, with `-np 32 -c 1024`.
const CHOICE_LINES: &str = "
task\tacc_norm
1\t100.00000000
2\t50.00000000
3\t66.66666667
4\t50.00000000
5\t40.00000000
6\t33.33333333
7\t28.57142857

Final result: 28.5714 +/- 18.4428
Random chance: 31.8182 +/- 19.0150
";

#[test]
fn lines_and_figures_are_those_of_llama_perplexity() {
    let files = Files::new();
    let stories = files.at("stories");
    assert_eq!(good(&files.args(&stories, &["--hellaswag"])), STORY_LINES);
    let three = good(&files.args(&stories, &["--hellaswag", "--hellaswag-tasks", "3"]));
    let lines: Vec<&str> = STORY_LINES.lines().take(5).collect();
    assert_eq!(three.trim_end(), lines.join("\n").trim_end());
    let choices = files.at("choices");
    let mut args = files.args(&choices, &["--multiple-choice"]);
    assert_eq!(good(&args), CHOICE_LINES);
    args[2] = "-bf";
    assert_eq!(good(&args), CHOICE_LINES);
    let gaps = files.at("gaps");
    let all = good(&files.args(&gaps, &["--winogrande"]));
    let lines: Vec<&str> = all.trim_end().lines().collect();
    assert_eq!(lines.len(), GAP_LINES.len(), "{all}");
    for (i, (line, (share, first, second, ends))) in lines.iter().zip(GAP_LINES).enumerate() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[..2], [&*(i + 1).to_string(), share], "{line}");
        assert!(fields[2].ends_with(&format!("  {ends}")), "{line}");
        let scores: Vec<f64> = fields[2]
            .split_whitespace()
            .take(2)
            .map(|score| score.parse().expect("a number"))
            .collect();
        // sums of f32 there, of f64 here
        for (ours, theirs) in scores.iter().zip([first, second]) {
            assert!((ours - theirs).abs() < 2e-5, "{line}: {theirs}");
        }
    }
    let four = ["--winogrande", "--winogrande-tasks", "4", "--json"];
    let object = json(&files.args(&gaps, &four));
    let drawn: Vec<u64> = object["answers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|answer| answer["task"].as_u64().expect("a number") - 1)
        .collect();
    assert_eq!(drawn, DRAWN.map(|n| n as u64));
    assert_eq!(
        (object["tasks"].as_u64(), object["correct"].as_u64()),
        (Some(4), Some(2))
    );
}

#[test]
fn what_is_wrong_with_tasks_is_told() {
    let files = Files::new();
    let stories = files.at("stories");
    for (args, code, says) in [
        (
            &["--winogrande"][..],
            1,
            "stories: line 1: expected a number, a sentence, two words",
        ),
        (
            &["--multiple-choice"],
            1,
            "stories: the file ends inside a task",
        ),
        (&["--hellaswag", "-c", "8"], 1, "stories: task "),
        (&["--hellaswag", "--winogrande"], 2, "cannot be used with"),
        (&["--hellaswag-tasks", "3"], 2, "--hellaswag"),
        (
            &["--hellaswag", "--chunks", "3"],
            2,
            "--chunks has no effect: expected a text to score",
        ),
        (
            &["--hellaswag", "--kl-divergence-base", "x"],
            2,
            "--kl-divergence-base has no effect",
        ),
    ] {
        let line = bad(&files.args(&stories, args), code);
        assert!(line.contains(says), "{args:?}: {line}");
    }
    let few = files.at("few");
    fs::write(&few, "a\nb\n").expect("written");
    let line = bad(&files.args(&few, &["--hellaswag"]), 1);
    assert!(
        line.ends_with("few: expected six lines for each task, got 2 lines"),
        "{line}"
    );
    let apart = files.at("apart");
    fs::write(&apart, "0,_ x,a,b,1\n\n").expect("written");
    let line = bad(&files.args(&apart, &["--winogrande"]), 1);
    let expected = "task 1: expected answers that begin with the same token, got others";
    assert!(line.ends_with(expected), "{line}");
}
