//! Few cases that hold every pair of values of every two axes.

use std::collections::HashSet;

/// A value (second number) of an axis (first number).
type Choice = (usize, usize);

/// Whether two choices can stand in one case.
pub type Fits<'a> = &'a dyn Fn(Choice, Choice) -> bool;

/// Every pair that some case has to hold, the lower axis first.
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

/// Cases, each a value for every axis, that hold all [`pairs`]: every case starts from a pair that none has yet and takes
/// for each other axis the value that adds the most such pairs (Cohen 1997). The same in every run.
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
            // Values take turns where they add equally much.
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
        held(&case).for_each(|pair| _ = missing.remove(&pair));
        cases.push(case);
    }
    cases
}

/// The pairs of one case.
pub fn held(case: &[usize]) -> impl Iterator<Item = (Choice, Choice)> {
    (0..case.len()).flat_map(move |b| (0..b).map(move |a| ((a, case[a]), (b, case[b]))))
}
