//! Components that training libraries put into the names of tensors, and names that differ from the wanted one by
//! such a prefix.

use std::collections::BTreeMap;

/// Components that stand for a wrapper around a module, wherever they are in a name: of `torch.compile`, of FSDP, and
/// of activation checkpointing.
const WRAPPERS: [&str; 3] = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// The component that `DataParallel` and `DistributedDataParallel` put in front of all names. Elsewhere it may be the
/// name of a module.
const PARALLEL: &str = "module";

/// The name without the components of wrappers.
pub(super) fn unwrapped(name: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let last = name.matches('.').count();
    for (index, component) in name.split('.').enumerate() {
        let is_wrapper = WRAPPERS.contains(&component) || (kept.is_empty() && component == PARALLEL);
        if !is_wrapper || index == last {
            kept.push(component);
        }
    }
    kept.join(".")
}

/// Removes the components of wrappers from all names, unless two tensors would get one name.
pub(super) fn unwrap<T>(tensors: BTreeMap<String, T>) -> BTreeMap<String, T> {
    let names: BTreeMap<String, &String> = tensors.keys().map(|name| (unwrapped(name), name)).collect();
    if names.len() < tensors.len() || names.iter().all(|(new, old)| new == *old) {
        return tensors;
    }
    tensors.into_iter().map(|(name, tensor)| (unwrapped(&name), tensor)).collect()
}

/// The one of `names` that ends with `wanted` below a prefix, if there is exactly one.
pub(super) fn with_prefix<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut found = names.filter(|name| name.strip_suffix(wanted).is_some_and(|prefix| prefix.ends_with('.')));
    let name = found.next()?;
    found.next().is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_of_wrappers_are_left_out() {
        for (stored, name) in [
            ("_orig_mod.encoder.weight", "encoder.weight"),
            ("encoder._orig_mod.layer.0.bias", "encoder.layer.0.bias"),
            ("module._orig_mod.encoder.weight", "encoder.weight"),
            ("_orig_mod.module.encoder.weight", "encoder.weight"),
            ("_fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.norm.weight", "layers.0.norm.weight"),
            ("blocks.0.module.weight", "blocks.0.module.weight"),
            ("module", "module"),
        ] {
            assert_eq!(unwrapped(stored), name);
        }
        let tensors = |names: &[&str]| names.iter().map(|name| (name.to_string(), ())).collect::<BTreeMap<_, _>>();
        assert_eq!(unwrap(tensors(&["module.a", "b"])), tensors(&["a", "b"]));
        let both = tensors(&["_orig_mod.a", "a"]);
        assert_eq!(unwrap(both.clone()), both, "two tensors of one name");
    }

    #[test]
    fn a_name_is_found_below_the_only_prefix_that_has_it() {
        let names = ["student.a.weight", "student.ba.weight", "x.b", "y.b"];
        assert_eq!(with_prefix("a.weight", names.into_iter()), Some("student.a.weight"));
        assert_eq!(with_prefix("b", names.into_iter()), None);
        assert_eq!(with_prefix("c", names.into_iter()), None);
    }
}
