//! The answers that `search` finds to questions, on the documents of the repository and on a folder of wrapped
//! texts.

use serde_json::Value;

use crate::programs::succeeds;
use crate::search::{Folder, parsed};

/// How many of the questions in `search/questions.tsv` have one of their answers among the first three hits.
fn answered(arguments: &[&str]) -> usize {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/search");
    let questions = std::fs::read_to_string(tests.join("questions.tsv")).unwrap();
    let questions: Vec<Vec<&str>> = questions.lines().map(|line| line.split('\t').collect()).collect();
    let folder = Folder::new(&[]);
    std::fs::create_dir_all(folder.path("")).unwrap();
    let is_answered = |question: &&Vec<&str>| {
        let place = if question[0] == "docs" { tests.join("../../../../docs") } else { tests.join(question[0]) };
        let said = succeeds(folder.search(&["--json", "-k3", question[1]]).arg(&place).args(arguments));
        let answers = |hit: &Value| {
            let text = std::fs::read_to_string(hit["file"].as_str().unwrap()).unwrap();
            let [first, last] = [0, 1].map(|i| hit["lines"][i].as_u64().unwrap() as usize);
            let lines: Vec<&str> =
                text.lines().skip(first - 1).take(last + 1 - first).flat_map(str::split_whitespace).collect();
            question[2..].iter().any(|answer| lines.join(" ").contains(answer))
        };
        let is_answered = parsed(&said).iter().any(answers);
        println!("{} {}", if is_answered { "yes" } else { "no " }, question[1]);
        is_answered
    };
    questions.iter().filter(is_answered).count()
}

#[test]
fn questions_have_their_answers_among_the_first_hits() {
    let answered = answered(&[]);
    assert!(answered >= 12, "{answered} of 20");
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn questions_have_their_answers_among_the_first_hits_of_minilm() {
    let answered = answered(&["--model", &std::env::var("CANDLE_ATTENTION_MINILM").unwrap()]);
    assert!(answered >= 16, "{answered} of 20");
}
