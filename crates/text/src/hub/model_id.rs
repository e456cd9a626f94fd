//! Syntax of hub ids.

use candle_attention::{Error, Result};

/// The longest owner or name, in characters: the hub's own limit of a name.
const MAX_PART: usize = 96;

/// Checks that `id` is `name` or `owner/name`, by the rules of the hub (`validate_repo_id` of huggingface_hub):
/// letters, digits, `.`, `_` and `-`, at most 96 characters each, no `--` and no `..`; neither begins or ends with `.`
/// or `-`, and the name does not end with `.git`.
pub(crate) fn check_id(id: &str) -> Result<()> {
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let length = (1..=MAX_PART).contains(&part.len());
        length && !part.starts_with(['.', '-']) && !part.ends_with(['.', '-']) && part.chars().all(allowed)
    };
    // The cache writes `owner--name`: two ids with `--` could share a folder.
    let clear = !id.contains("--") && !id.contains("..") && !id.ends_with(".git");
    if clear && id.split('/').count() <= 2 && id.split('/').all(plain) {
        return Ok(());
    }
    // An id has no control characters; what is none could drive the terminal that shows it.
    let shown: String = id.chars().take(2 * MAX_PART).flat_map(char::escape_debug).collect();
    Err(Error::value("the model", shown, "a folder that exists, or a hub id such as owner/name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_hub() {
        let longest = format!("{}/{}", "a".repeat(96), "b".repeat(96));
        let good =
            ["gpt2", "a", "a/b", "123", "owner/name", "O_w-n.er/N_a-m.e", "_a/__b__", "a.gits/x.git.y", &longest];
        for id in good {
            assert!(check_id(id).is_ok(), "{id}");
        }
        let too_long = format!("{longest}b");
        let parts =
            ["", "/", "a/", "/a", "a//b", "a/b/c", "datasets/a/b", ".", "..", "./a", "a/..", "../a", "a..b", "a/b..c"];
        let edges = [
            "-a", "a-", ".a", "a.", "a/-b", "a/b-", "a/.b", "a/b.", "-/a", "a--b", "a--b/c", "a/b--c", "a.git",
            "a/b.git",
        ];
        let signs =
            ["a b", "a\\b", "a:b", "a@b", "a+b", "a=b", "a\nb", "a\0b", "é", "a/ö", "https://hf.co/a/b", &too_long];
        for id in parts.iter().chain(&edges).chain(&signs) {
            assert!(check_id(id).is_err(), "{id}");
        }
        let error = check_id("\u{1b}[31m").unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}
