//! The command `attention-map`.

use crate::common::fixture;
use crate::programs::{fails, program, succeeds};

#[test]
fn attention_map_prints_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tiny = |arguments: &[&str]| {
        let mut command = program("attention-map");
        command.arg("--model").arg(fixture("tiny-bert")).args(arguments).arg("the <b>cat</b>");
        command.env_remove("CLICOLOR_FORCE");
        command
    };
    let said = succeeds(&mut tiny(&["--layer", "1", "--head", "2"]));
    assert!(said.starts_with("layer 1, head 2: ") && !said.contains('\u{1b}'), "{said}");
    // Without a head it is the one that the page opens on.
    let page = succeeds(tiny(&["--html", "-"]).arg("--force"));
    let view = page.split("\"view\":{").nth(1).and_then(|rest| rest.split('}').next()).expect("a view");
    let number = |key: &str| {
        let rest = view.split(&format!("\"{key}\":")).nth(1).expect(key);
        rest.split(',').next().unwrap().to_string()
    };
    let telling = format!("layer {}, head {}: ", number("layer"), number("head"));
    assert!(succeeds(&mut tiny(&[])).starts_with(&telling), "{telling}");
    let layer_map = succeeds(&mut tiny(&["--layer", "0"]));
    assert!(layer_map.starts_with("layer 0, head "), "{layer_map}");
    assert!(succeeds(&mut tiny(&["--head", "3"])).contains(", head 3: "));
    assert!(succeeds(tiny(&[]).env("CLICOLOR_FORCE", "1").env("COLORTERM", "truecolor")).contains("\u{1b}[48;2;"));
    let unwanted = succeeds(tiny(&[]).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1"));
    assert!(!unwanted.contains('\u{1b}'));

    let pair = succeeds(&mut tiny(&["--pair", "a dog"]));
    let rows: Vec<&str> = pair.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let rows: Vec<&str> = rows.into_iter().filter(|row| !row.starts_with('─')).collect();
    assert!(rows.windows(4).any(|rows| rows == ["[SEP]", "a", "dog", "[SEP]"]), "{pair}");

    let said = succeeds(tiny(&[]).arg("--html").arg(path("a.html")).arg("--svg").arg(path("a.svg")));
    assert_eq!(said, "");
    assert!(std::fs::read_to_string(path("a.html")).unwrap().contains("id=\"w1-0\""));
    let svg = std::fs::read_to_string(path("a.svg")).unwrap();
    assert!(roxmltree::Document::parse(&svg).is_ok());

    fails(&mut tiny(&["--layer", "7"]), "--layer 7: the model has layers 0 to 1");
    fails(&mut tiny(&["--head", "99"]), "--head 99: the model has heads 0 to 3");
    fails(&mut tiny(&["--layer", "1", "--head", "4"]), "--head 4: layer 1 has heads 0 to 3");
    fails(&mut tiny(&["--batch-size", "4"]), "unexpected argument '--batch-size'");
    fails(tiny(&[]).arg("--svg").arg(path("no/a.svg")), "its folder does not exist");
    fails(tiny(&[]).arg("--html").arg(folder.path()), "is a folder");
    fails(program("attention-map").args(["--model", "/no/such/folder", "a"]), "a folder that exists, or a hub id");
    fails(program("attention-map").args(["--model", "/no/such/folder"]), "<TEXT>");
    fails(tiny(&[]).arg("--svg").arg(path("a.png")), "a.png: is the name of a .png file, expected .svg");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2);
}
