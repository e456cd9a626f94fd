//! The functions `embed`, `embed_query` and `embed_document`.

use std::ops::Range;
use std::sync::Arc;

use candle_attention::candle_core::Tensor;
use candle_attention_text::{EncodeOptions, quantize_embeddings};
use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::arguments::{literal, literals, scalars, text_literal, text_types};
use crate::arrays::{embeddings, texts};
use crate::encoding::{first_failing, one_at_a_time};
use crate::error::Error;
use crate::model::Model;
use crate::models::Models;
use crate::precision::EmbeddingPrecision;

/// What the texts of a function are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Whatever the model's default prompt is for.
    Text,
    /// Searching.
    Query,
    /// Being searched.
    Document,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Text, Self::Query, Self::Document];

    /// The name of the function.
    pub fn function(self) -> &'static str {
        match self {
            Self::Text => "embed",
            Self::Query => "embed_query",
            Self::Document => "embed_document",
        }
    }

    pub(crate) fn encode(self, model: &Model, texts: &[&str]) -> candle_attention::Result<Tensor> {
        let (encoder, options) = (model.model(), EncodeOptions::default());
        match self {
            Self::Text => encoder.encode(texts, &options),
            Self::Query => encoder.encode_query(texts, &options),
            Self::Document => encoder.encode_document(texts, &options),
        }
    }
}

/// `embed(text [, model [, precision [, fingerprint]]])`: text → list of numbers, null → null.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Embed {
    role: Role,
    models: Arc<Models>,
    signature: Signature,
}

/// The literals of a call, resolved.
struct Call<'a> {
    model: &'a Model,
    precision: EmbeddingPrecision,
}

impl Embed {
    pub fn new(role: Role, models: Arc<Models>) -> Self {
        Self { role, models, signature: Signature::user_defined(Volatility::Immutable) }
    }

    /// What the literals of a call mean on this node.
    fn call(&self, arguments: &[Option<&ScalarValue>]) -> Result<Call<'_>> {
        let text = |what, i| literal(self.name(), what, arguments, i);
        let model = self.models.model(text("model", 1)?)?;
        let precision = text("precision", 2)?.map(str::parse).transpose()?.unwrap_or_default();
        self.models.check_fingerprint(model.name(), model.fingerprint_for(precision)?, text("fingerprint", 3)?)?;
        Ok(Call { model, precision })
    }

    fn encode(&self, Call { model, precision }: &Call, array: &dyn Array) -> Result<ArrayRef> {
        let rows = texts(array)?;
        let present: Vec<bool> = rows.iter().map(Option::is_some).collect();
        let given: Vec<&str> = rows.iter().flatten().copied().collect();
        let ranges = model.ranges(*precision)?.map(|ranges| &ranges.values);
        let encoded = one_at_a_time(given.len(), || {
            quantize_embeddings(&self.role.encode(model, &given)?, precision.quantized(), ranges)
        });
        let quantized = encoded.map_err(|error| self.blame(model, &rows, error))?;
        let (_, width) = quantized.dims();
        embeddings(quantized.into_values(), *precision, width, &present)
    }

    /// The error of a batch with the row that causes it, if there is one.
    fn blame(&self, model: &Model, rows: &[Option<&str>], error: candle_attention::Error) -> Error {
        let given: Vec<(usize, &str)> =
            rows.iter().enumerate().filter_map(|(row, text)| Some((row, (*text)?))).collect();
        let mut run = |range: Range<usize>| {
            let texts: Vec<&str> = given[range].iter().map(|(_, text)| *text).collect();
            one_at_a_time(0, || self.role.encode(model, &texts)).map(drop)
        };
        match first_failing(given.len(), &mut run) {
            Some((i, error)) => Error::in_row(given[i].0, rows.len(), given[i].1, &error),
            None => Error::load(model.name(), error),
        }
    }
}

impl ScalarUDFImpl for Embed {
    fn name(&self) -> &str {
        self.role.function()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        text_types(self.name(), &["text", "model", "precision", "fingerprint"], 1, found)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type of `{}` depends on its literals", self.name())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let Call { model, precision } = self.call(args.scalar_arguments)?;
        Ok(Arc::new(Field::new(self.name(), precision.data_type(model.model().embedding_size()), true)))
    }

    /// Adds the literals that the call leaves out, and the fingerprint, so that all nodes compute the same.
    fn simplify(&self, args: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        if args.len() > 3 {
            return Ok(ExprSimplifyResult::Original(args));
        }
        let Call { model, precision } = self.call(&literals(&args))?;
        let full = vec![
            args[0].clone(),
            text_literal(model.name()),
            text_literal(precision.to_string()),
            text_literal(model.fingerprint_for(precision)?),
        ];
        let function = Arc::new(ScalarUDF::from(self.clone()));
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(ScalarFunction::new_udf(function, full))))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let call = self.call(&scalars(&args.args))?;
        match &args.args[0] {
            ColumnarValue::Array(array) => Ok(ColumnarValue::Array(self.encode(&call, array)?)),
            ColumnarValue::Scalar(text) => {
                let array = self.encode(&call, &text.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?))
            }
        }
    }
}
