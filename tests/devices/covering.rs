//! Pairwise covering: few cases that contain every pair of values of every two axes.

use std::collections::HashSet;

/// An axis and one of its values, both by index.
type Choice = (usize, usize);

/// Whether two choices may be combined in one case.
pub type Fits<'a> = &'a dyn Fn(Choice, Choice) -> bool;

/// Every pair that some case must contain, the lower axis first.
pub fn pairs(sizes: &[usize], fits: Fits) -> HashSet<(Choice, Choice)> {
    let mut pairs = HashSet::new();
    for b in 0..sizes.len() {
        for (a, x, y) in (0..b).flat_map(|a| (0..sizes[a]).flat_map(move |x| (0..sizes[b]).map(move |y| (a, x, y)))) {
            if fits((a, x), (b, y)) {
                pairs.insert(((a, x), (b, y)));
            }
        }
    }
    pairs
}

/// Cases, each with a value per axis, that contain all [`pairs`]. Every case starts from a pair that no case contains
/// yet and takes for each other axis the value that adds the most such pairs (Cohen 1997). The result is the same in
/// every run.
pub fn cases(sizes: &[usize], fits: Fits) -> Vec<Vec<usize>> {
    let mut missing = pairs(sizes, fits);
    let mut in_order: Vec<_> = missing.iter().copied().collect();
    in_order.sort_unstable();
    let mut cases = Vec::new();
    for (a, b) in in_order {
        if !missing.contains(&(a, b)) {
            continue;
        }
        let mut case: Vec<Option<usize>> = vec![None; sizes.len()];
        (case[a.0], case[b.0]) = (Some(a.1), Some(b.1));
        for axis in (0..sizes.len()).filter(|axis| *axis != a.0 && *axis != b.0) {
            let chosen: Vec<Choice> = case.iter().enumerate().filter_map(|(axis, x)| Some((axis, (*x)?))).collect();
            // Among values that add equally many pairs, they take turns.
            let values = (0..sizes[axis]).map(|i| (axis, (i + cases.len()) % sizes[axis]));
            let possible =
                values.filter(|choice| chosen.iter().all(|other| fits(*other.min(choice), *other.max(choice))));
            let added = |choice: &Choice| {
                chosen.iter().filter(|other| missing.contains(&(*(*other).min(choice), *(*other).max(choice)))).count()
            };
            let best = possible.max_by_key(added).expect("a value that fits");
            case[axis] = Some(best.1);
        }
        let case: Vec<usize> = case.into_iter().flatten().collect();
        pairs_of(&case).for_each(|pair| _ = missing.remove(&pair));
        cases.push(case);
    }
    cases
}

/// The pairs of one case.
pub fn pairs_of(case: &[usize]) -> impl Iterator<Item = (Choice, Choice)> {
    (0..case.len()).flat_map(move |b| (0..b).map(move |a| ((a, case[a]), (b, case[b]))))
}
