//! The routes of a sentence-transformers model: lists of modules, one for queries and one for documents, say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use candle_attention::{Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::folder::{MAX_MODULES, ModelFolder, Module, any_modules};
use crate::model_files::inside;

/// The most routes that a model may have. Published models have two.
const MAX_ROUTES: usize = 16;

/// The modules of a model by route.
#[derive(Debug)]
pub(crate) struct Routes {
    /// The name and the modules of each route. A model without a router has one, without a name.
    pub all: Vec<(Option<String>, Vec<Module>)>,
    /// The index of the route of texts without a task; `None` if every text needs one.
    pub default: Option<usize>,
    /// The configuration of the router, if there is one.
    pub config: Option<PathBuf>,
}

impl Routes {
    /// Every module with files once, by its path.
    pub fn modules(&self) -> BTreeMap<&str, &Module> {
        let modules = self.all.iter().flat_map(|(_, modules)| modules).filter(|module| !module.has_no_files());
        modules.map(|module| (module.path.as_str(), module)).collect()
    }

    /// The folders with files of the model, the top included.
    pub fn folders(&self) -> BTreeSet<String> {
        let config = self.config.as_ref().and_then(|config| inside(config.parent()?));
        let modules = self.modules().into_keys().map(str::to_string);
        modules.chain(config).chain([String::new()]).collect()
    }
}

/// `router_config.json`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RouterConfig {
    types: BTreeMap<String, String>,
    structure: InOrder<Vec<String>>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    default_route: Option<String>,
    allow_empty_key: bool,
    route_mappings: Option<BTreeMap<String, String>>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { default_route: None, allow_empty_key: true, route_mappings: None }
    }
}

/// The entries of an object in the order of the file: the first route may be the default.
struct InOrder<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = InOrder<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(InOrder(entries))
            }
        }

        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

/// Whether a module is a router.
pub(crate) fn is_router(module: &Module) -> bool {
    matches!(module.kind(), "Router" | "Asym")
}

/// Where the configuration of a router may be: under its name, or under that of earlier versions.
pub(crate) const ROUTER_CONFIGS: [&str; 2] = ["router_config.json", "config.json"];

/// The routes of a model; `None` without `modules.json`.
pub(crate) fn routes(folder: ModelFolder) -> Result<Option<Routes>> {
    let Some(modules) = any_modules(folder)? else { return Ok(None) };
    let Some(at) = modules.iter().position(is_router) else {
        return Ok(Some(Routes { all: vec![(None, modules)], default: Some(0), config: None }));
    };
    let inside_folder = folder.path.join(&modules[at].path);
    let [file, earlier] = ROUTER_CONFIGS.map(|name| inside_folder.join(name));
    let file = if folder.holds(&file)? { file } else { earlier };
    let wrong = |reason: String| Error::file(&file, reason);
    let RouterConfig { types, structure: InOrder(structure), parameters } = folder.json(&file)?;
    if !(1..=MAX_ROUTES).contains(&structure.len()) {
        return Err(wrong(format!("{} routes, expected 1 to {MAX_ROUTES}", structure.len())));
    }
    if parameters.route_mappings.is_some_and(|mappings| !mappings.is_empty()) {
        return Err(wrong("route_mappings is not empty, which this version does not run".to_string()));
    }
    let mut all: Vec<(Option<String>, Vec<Module>)> = Vec::new();
    for (name, ids) in structure {
        if all.iter().any(|(earlier, _)| earlier.as_deref() == Some(name.as_str())) {
            return Err(wrong(format!("two routes have the name `{name}`")));
        }
        let module = |id: &String| {
            let class = types.get(id).ok_or_else(|| wrong(format!("types does not list the module `{id}`")))?;
            let below = Path::new(&modules[at].path).join(id);
            let inside_router = inside(Path::new(id)).filter(|id| !id.is_empty());
            match inside_router.and_then(|_| inside(&below)) {
                Some(path) => Module::new(folder, path, class),
                None => Err(wrong(format!("module path `{id}` leads out of the folder"))),
            }
        };
        let own = ids.iter().map(module).collect::<Result<Vec<_>>>()?;
        let flat: Vec<Module> = modules[..at].iter().cloned().chain(own).chain(modules[at + 1..].to_vec()).collect();
        if flat.len() > MAX_MODULES || flat.is_empty() || flat.iter().any(is_router) {
            let expected = format!("expected 1 to {MAX_MODULES}, none of them a router");
            return Err(wrong(format!("the route `{name}` has {} modules, {expected}", flat.len())));
        }
        all.push((Some(name), flat));
    }
    let place = |name: &String| all.iter().position(|(other, _)| other.as_ref() == Some(name));
    let default = match &parameters.default_route {
        Some(name) => Some(place(name).ok_or_else(|| wrong(format!("default_route `{name}` is not a route")))?),
        None => parameters.allow_empty_key.then_some(0),
    };
    Ok(Some(Routes { all, default, config: Some(file) }))
}
