use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The different lines of a text that are not blank, without the blanks around them, and where each stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lines<'a> {
    /// Each different line once, in the order in which they come first.
    pub texts: Vec<&'a str>,
    /// For each of `texts` the numbers of its lines, from 1, ascending.
    pub numbers: Vec<Vec<usize>>,
}

impl<'a> Lines<'a> {
    /// Takes a text apart; a byte order mark at its start belongs to no line.
    pub fn new(text: &'a str) -> Self {
        let (mut lines, mut places) = (Self::default(), HashMap::new());
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match places.entry(line) {
                Entry::Occupied(place) => {
                    let place: &usize = place.get();
                    lines.numbers[*place].push(number);
                }
                Entry::Vacant(place) => {
                    place.insert(lines.texts.len());
                    lines.texts.push(line);
                    lines.numbers.push(vec![number]);
                }
            }
        }
        lines
    }
}
