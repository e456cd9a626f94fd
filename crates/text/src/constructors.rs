//! The constructors that all models have.

/// `constructors! { /// Docs of from_folder. from_folder, from_files, …; }` defines those of the constructors of a
/// model that are named. They call its `open(ModelSource)` and
/// `with_source(ModelFolder, &AnySource)`, of which `open` is made from the other if it is named too.
macro_rules! constructors {
    ($(#[$documentation:meta])* from_folder $(, $more:ident)*;) => {
        $(#[$documentation])*
        pub fn from_folder(
            folder: impl AsRef<std::path::Path>,
            compute_type: impl Into<candle_attention::ComputeType>,
            device: &candle_core::Device,
        ) -> candle_attention::Result<Self> {
            let compute_type = compute_type.into();
            crate::folder::with_folder(folder.as_ref(), |folder| {
                Self::open(crate::folder::ModelSource { folder, compute_type, device })
            })
        }

        $(crate::constructors::constructors! { @ $more })*
    };
    (@ from_files) => {
        /// The model of files in memory.
        ///
        /// # Errors
        /// The errors of [`from_folder`](Self::from_folder).
        pub fn from_files(
            files: &crate::ModelFiles,
            compute_type: impl Into<candle_attention::ComputeType>,
            device: &candle_core::Device,
        ) -> candle_attention::Result<Self> {
            let (folder, compute_type) = (crate::folder::ModelFolder::in_memory(files), compute_type.into());
            Self::open(crate::folder::ModelSource { folder, compute_type, device })
        }
    };
    (@ from_hub) => {
        /// The model of a hub id, from the local cache if it is there.
        ///
        /// # Errors
        /// The errors of [`download`](crate::download) and [`from_folder`](Self::from_folder).
        #[cfg(feature = "hub")]
        pub fn from_hub(
            id: &str,
            options: &crate::HubOptions,
            compute_type: impl Into<candle_attention::ComputeType>,
            device: &candle_core::Device,
        ) -> candle_attention::Result<Self> {
            let (snapshot, compute_type) = (crate::hub::snapshot(id, options)?, compute_type.into());
            Self::open(crate::folder::ModelSource { folder: snapshot.folder(), compute_type, device })
        }
    };
    (@ load) => {
        /// The model of a folder with the weights from any source, such as variables that are being trained or bytes.
        ///
        /// # Errors
        /// The errors of [`from_folder`](Self::from_folder).
        pub fn load(
            folder: impl AsRef<std::path::Path>,
            source: impl candle_attention::checkpoint::WeightSource,
        ) -> candle_attention::Result<Self> {
            let source = candle_attention::checkpoint::AnySource::new(&source);
            Self::with_source(crate::folder::ModelFolder::new(&folder), &source)
        }
    };
    (@ open) => {
        pub(crate) fn open(source: crate::folder::ModelSource) -> candle_attention::Result<Self> {
            let weights = source.weights(&source.folder.transformer()?)?;
            Self::with_source(source.folder, &candle_attention::checkpoint::AnySource::new(&weights))
        }
    };
}

pub(crate) use constructors;
