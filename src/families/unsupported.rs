//! Families that this version cannot run as their own models do.

/// The lines of `unsupported.txt`: values of `model_type`, and the reason that they share.
fn unsupported() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("unsupported.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": "))
}

/// Every `model_type` of such a family.
pub(super) fn unsupported_types() -> impl Iterator<Item = &'static str> {
    unsupported().flat_map(|(model_types, _)| model_types.split(' '))
}

/// Why this version cannot run a family.
pub(super) fn unsupported_reason(model_type: &str) -> Option<&'static str> {
    unsupported().find(|(names, _)| names.split(' ').any(|name| name == model_type)).map(|(_, why)| why)
}
